"""Shared by every page and route: settings, errors, messages, logs, metrics, access."""
