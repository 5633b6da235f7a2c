"""Texts, tables and archives that people pass to a verb: read, or refused with the reason.

Standard library only: manifests are read with this inside Triton.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError

# What zipfile raises for an archive that is damaged, or lacks a part, or is packed in another way.
ZIP_ERRORS: Final = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def check_weights(path: Path) -> None:
    """Raise GourmetError unless there is such a file of weights, or of a network."""
    if not path.is_file():
        raise GourmetError(f"{path} does not exist: train first, or name another file")


def read_text(path: Path) -> str:
    """Read a text in UTF-8 with its line ends as they are; OSError, or ValueError for any other."""
    return path.read_bytes().decode()


def read_table(path: Path) -> dict[str, Any]:
    """Read an object of JSON by its keys; OSError or ValueError for anything else."""
    try:
        found = json.loads(read_text(path))
    except RecursionError as exc:
        raise ValueError("its lists or tables are too deep") from exc
    if not isinstance(found, dict):
        raise ValueError("it is not an object of JSON, {…}")
    return found


def in_short(exc: Exception) -> str:
    """A reason for a sentence: its first line, and of pydantic's errors where, and what is wrong there."""
    details: list[Any] = getattr(exc, "errors", list)()
    if details:
        return f"{'.'.join(map(str, details[0]['loc']))}: {details[0]['msg']}"
    return next(iter(str(exc).splitlines()), type(exc).__name__)[:300]


@contextlib.contextmanager
def what_it_says() -> Iterator[None]:
    """Within, a table is taken for what it should be; ValueError says where it is something else."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        what = f"it lacks {exc}" if isinstance(exc, LookupError) else f"unexpected value: {exc}"
        raise ValueError(what) from exc
