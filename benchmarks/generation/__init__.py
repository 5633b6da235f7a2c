"""What turns the translator's loop fastest, and what a user would take instead: a program of its own."""
