"""Packages that serving texts needs none of, and training, evaluating and deploying them does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gourmet.errors import GourmetError


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
