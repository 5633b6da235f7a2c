"""How much is taken in at a time: the queue, uploads, rate limits, and gunicorn itself."""
