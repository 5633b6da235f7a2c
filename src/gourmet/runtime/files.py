"""Files that are whole or not there, written aside and then moved into place; and one's own files to read."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gourmet.runtime.signals import undone_by_sigterm


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what was written there replaces `path` only if nothing failed.

    Its name is drawn, so that in a folder of several users none can put a link or a FIFO there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with undone_by_sigterm():
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


def open_own(path: Path) -> BinaryIO:
    """Open a regular file of this user, which has no other name, to be read; OSError for anything else.

    No link is followed, and each folder is looked up in the one that was opened before it: what is swapped
    meanwhile leads nowhere else. What would wait for a writer, such as a FIFO, is not waited for.
    """
    with contextlib.ExitStack() as opened:

        def folder(name: str, within: int | None) -> int:
            number = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
            opened.callback(os.close, number)
            return number

        at = folder("/", None)
        for part in path.absolute().parts[1:-1]:
            at = folder(part, at)
        number = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=at)
    about = os.fstat(number)
    if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
        return os.fdopen(number, "rb")
    os.close(number)
    raise PermissionError(f"{path} is not a file of this user's own")
