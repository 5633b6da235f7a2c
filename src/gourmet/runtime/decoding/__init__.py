"""Generating text word by word in a served model: the loop, its rows, and what computes a step of it."""
