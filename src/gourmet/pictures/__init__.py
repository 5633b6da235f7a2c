"""Decode untrusted pictures safely, and share the code of picture classifiers."""
