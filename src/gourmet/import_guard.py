"""Keeps a checkout's folder triton/ from passing for torch's compiler of that name.

Python started in the checkout has that folder on sys.path, where any folder counts as a package: `import
torch` survives it, and torch.compile dies with "module 'triton' has no attribute 'language'". A real triton
that is installed is found as ever. `make setup` has every Python of the environment import this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Finder(PathFinder):
    """Finds what Python finds by itself, but for a folder called triton that has no __init__.py."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        return None if fullname == "triton" and spec and spec.loader is None else spec


def install() -> None:
    """Put the finder above in the place of Python's own."""
    if PathFinder in sys.meta_path:
        sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder
