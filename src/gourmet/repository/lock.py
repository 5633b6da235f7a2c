"""A lock of a model repository: one verb at a time changes it, and the next one waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gourmet.repository import RepositoryError

LOCK_FILE: Final = ".gourmet.lock"
_MAX_WAIT_S: Final = 900.0


@contextlib.contextmanager
def changing(
    repository: Path, say: Callable[[str], object], max_wait_s: float = _MAX_WAIT_S
) -> Iterator[None]:
    """Hold the lock of `repository`; `say` reports a wait for another verb.

    A missing folder is created, and removed if it stays empty. The lock ends with its process, and works
    between programs of one machine.
    """
    from filelock import FileLock, Timeout

    lock, is_new = FileLock(repository / LOCK_FILE), not repository.exists()
    try:
        repository.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            say(f"another gourmet changes {repository}: waiting until it has ended")
            lock.acquire(timeout=max_wait_s)
        try:
            yield
        finally:
            lock.release()
            if is_new and [path.name for path in repository.iterdir()] == [LOCK_FILE]:
                (repository / LOCK_FILE).unlink()
                repository.rmdir()
    except Timeout as exc:
        raise RepositoryError(
            f"another gourmet still changes {repository}: try again when it has ended"
        ) from exc
    except OSError as exc:
        raise RepositoryError(
            f"{repository} cannot be written ({exc.strerror or exc}): free disk space, or name another folder"
        ) from exc
