"""One module a verb; gourmet.cli imports them by name."""
