"""Admission of requests: the queue, uploads, rate limits, and gunicorn itself."""
