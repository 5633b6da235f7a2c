"""Packages that not everybody has."""

from __future__ import annotations

import importlib
from typing import Any

from gourmet.errors import UsageError


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
