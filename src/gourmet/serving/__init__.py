"""Starting a real Triton out of the PyPI wheel and the web app in front of it; finding those that run."""

from gourmet.serving.run_file import Stack, running_stack

__all__ = ["Stack", "running_stack"]
