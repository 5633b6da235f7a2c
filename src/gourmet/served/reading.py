"""Read texts, tables and archives that a user passes to a verb, or refuse them with the reason.

Standard library only: served models read their manifests with it inside Triton.
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

# The errors that zipfile raises for an archive that is damaged, incomplete or packed by an unknown method.
ZIP_ERRORS: Final = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def check_weights(path: Path) -> None:
    """Raise GourmetError unless the file of weights exists."""
    if not path.is_file():
        raise GourmetError(f"{path} does not exist: train first, or name another file")


def read_text(path: Path) -> str:
    """Read a UTF-8 text and keep its line ends; raise OSError, or ValueError for another encoding."""
    return path.read_bytes().decode()


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise OSError, or ValueError for anything else."""
    try:
        table = json.loads(read_text(path))
    except RecursionError as exc:
        raise ValueError("its lists or objects are nested too deeply") from exc
    if not isinstance(table, dict):
        raise ValueError("it is not a JSON object, {…}")
    return table


def error_summary(exc: Exception) -> str:
    """Return the reason in one line: the first line of the message, or the first of pydantic's errors."""
    details: list[Any] = getattr(exc, "errors", list)()
    if details:
        return f"{'.'.join(map(str, details[0]['loc']))}: {details[0]['msg']}"
    return next(iter(str(exc).splitlines()), type(exc).__name__)[:300]


@contextlib.contextmanager
def malformed_as_value_error() -> Iterator[None]:
    """Raise ValueError if a table that is read within the block lacks a key or has an unexpected value."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        reason = f"it lacks {exc}" if isinstance(exc, LookupError) else f"unexpected value: {exc}"
        raise ValueError(reason) from exc
