"""Starting a real Triton out of the PyPI wheel and the web app in front of it; finding those that run."""
