"""Anybody's network on Triton: built by name, filled from a checkpoint, written in a format, checked."""
