"""Compare the translator's loop with its alternatives: a program of its own."""
