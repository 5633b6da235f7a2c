"""Answers that grow token by token in a served model: the loop, its rows, and what computes a step of it."""
