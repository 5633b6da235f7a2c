"""Asking Triton: the one room that imports tritonclient."""
