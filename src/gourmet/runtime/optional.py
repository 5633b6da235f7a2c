"""Packages that not everybody has: how to get them, and what goes without."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from gourmet.errors import GourmetError, UsageError


def optional(module: str, what: str, requirements: str, otherwise: str = "") -> Any:
    """A module that `what` needs; UsageError says how to get it, and what goes without."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            f"{what} needs the package {package}, which is not installed here: run `pip install -c "
            f"requirements/constraints.txt -r requirements/{requirements}`{otherwise}"
        ) from None


@contextlib.contextmanager
def needed(requirements: str = "generation.txt") -> Iterator[None]:
    """Import within; what is not installed is said, with how to get it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise GourmetError(
            f"{exc.name} is not installed here, and only serving texts goes without it: "
            f"pip install -c requirements/constraints.txt -r requirements/{requirements}"
        ) from exc
