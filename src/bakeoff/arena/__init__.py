"""Where contenders meet. Knows no method and no host framework."""
