"""Train a system, and learn from new photos."""
