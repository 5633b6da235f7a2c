"""Start Triton from the PyPI wheel with the web app in front of it, and find running ones."""
