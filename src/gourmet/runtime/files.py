"""Files that are whole or not there, written aside and then moved into place; and one's own files to read."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what was written there replaces `path` only if nothing failed.

    Its name is drawn, so that in a folder of several users none can put a link or a FIFO there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file aside, and then into place."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")
