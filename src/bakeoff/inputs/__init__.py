"""Real inputs that packages ship, and safe loaders of the user's own files."""
