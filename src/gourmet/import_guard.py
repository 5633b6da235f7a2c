"""Keep a checkout's folder triton/ from passing for the package triton, torch's compiler.

If Python is started in the checkout, the checkout is on sys.path, and any folder there counts as a package:
`import torch` works, but torch.compile fails with "module 'triton' has no attribute 'language'". An installed
package triton is still found. After `make setup`, every Python of the environment imports this module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Finder(PathFinder):
    """Python's finder, except that it ignores a folder triton without an __init__.py."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        return None if fullname == "triton" and spec and spec.loader is None else spec


def install() -> None:
    """Replace Python's finder."""
    if PathFinder in sys.meta_path:
        sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder
