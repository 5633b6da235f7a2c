"""Everything that lies in a folder, to compare with what lies there later."""

from __future__ import annotations

from pathlib import Path

from gourmet.repository.lock import LOCK_FILE


def files(folder: Path) -> set[str]:
    """The name of every file, but for the lock of a repository."""
    return {name for name, content in everything(folder).items() if content is not None}


def everything(folder: Path) -> dict[str, bytes | None]:
    """Every file's content, and every folder, but for the lock of a repository."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != LOCK_FILE
    }
