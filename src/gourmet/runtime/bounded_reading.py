"""Somebody's files, read without waiting and no further than a bound.

Standard library only: manifests are read with this inside Triton.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from gourmet.errors import GourmetError

# Of a text, or a table of JSON; examples to learn from may be larger, and say so.
MAX_TEXT: Final = 16 << 20
MAX_WEIGHTS: Final = 16 << 30


def open_regular(path: Path, max_bytes: int = sys.maxsize) -> BinaryIO:
    """To be read by its opener; OSError for anything but a regular file, and for a larger one.

    What says that it is empty may go on for ever: it is read no further than its opener bounds.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb")
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if about.st_size > max_bytes:
        file.close()
        raise _too_large(path, max_bytes)
    return file


def _too_large(path: Path, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MB", str(path))


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """A regular file's content, which a link may lead to; OSError for anything else, and for a larger one.

    What would wait for a writer, such as a FIFO, is not waited for.
    """
    with open_regular(path, max_bytes) as file:
        # As much memory as is asked for is taken at once; files of the kernel's say that they are empty.
        content = file.read(min(max_bytes, max(os.fstat(file.fileno()).st_size, 1 << 20)) + 1)
    if len(content) > max_bytes:
        raise _too_large(path, max_bytes)
    return content


def check_weights(path: Path) -> None:
    """Raise GourmetError unless it is a file that weights or a network can lie in."""
    if not path.is_file():
        raise GourmetError(f"{path} does not exist: train first, or name another file")
    if (size := path.stat().st_size) > MAX_WEIGHTS:
        raise GourmetError(f"{path} has {size >> 30} GB; at most {MAX_WEIGHTS >> 30} GB of weights are read")


def read_text(path: Path, max_bytes: int = MAX_TEXT) -> str:
    """The same of a text in UTF-8; ValueError for any other."""
    return read_bytes(path, max_bytes).decode()


def read_table(path: Path) -> dict[str, Any]:
    """An object of JSON by its keys; OSError or ValueError for anything else."""
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
        what = f"it lacks {exc}" if isinstance(exc, LookupError) else f"it says what nobody asked for: {exc}"
        raise ValueError(what) from exc
