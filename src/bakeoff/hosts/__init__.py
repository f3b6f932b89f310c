"""What several rooms need of one host ecosystem; nothing of any method."""
