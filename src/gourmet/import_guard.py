"""Keeps a checkout's folder triton/ from passing for torch's compiler of that name.

Python started in the checkout has that folder on sys.path, where any folder counts as a package: `import
torch` survives it, and torch.compile dies with "module 'triton' has no attribute 'language'". A real triton
that is installed is found as ever. `make setup` has every Python of the environment import this.
"""

from __future__ import annotations

import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]


class _CheckoutFinder(FileFinder):
    """Finds what lies in the checkout's root, but for a folder called triton that has no __init__.py."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = super().find_spec(fullname, target)
        return None if fullname == "triton" and spec and spec.loader is None else spec


def install() -> None:
    """Have the import system look into the checkout's root with the finder above."""
    sys.path_hooks.insert(0, _finder)
    sys.path_importer_cache.pop(str(CHECKOUT), None)


def _finder(path: str) -> FileFinder:
    if Path(path).resolve() != CHECKOUT:
        raise ImportError(f"{path} is not the checkout's root")
    return _CheckoutFinder(
        path,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (SourceFileLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
