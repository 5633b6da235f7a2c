"""One verb at a time changes a model repository: the next one waits until it has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gourmet.repository import RepositoryError

LOCK_FILE: Final = ".gourmet.lock"
_WAITS_S: Final = 900.0


@contextlib.contextmanager
def changing(repository: Path, say: Callable[[str], object], waits_s: float = _WAITS_S) -> Iterator[None]:
    """Hold the lock of `repository`; `say` reports a wait for another verb.

    A folder that did not exist is made, and removed if nothing was put into it. The lock ends with its
    process, and keeps programs of one machine apart.
    """
    from filelock import FileLock, Timeout

    lock, is_new = FileLock(repository / LOCK_FILE), not repository.exists()
    try:
        repository.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            say(f"another gourmet is at work in {repository}: waiting until it has ended")
            lock.acquire(timeout=waits_s)
        try:
            yield
        finally:
            lock.release()
            if is_new and [path.name for path in repository.iterdir()] == [LOCK_FILE]:
                (repository / LOCK_FILE).unlink()
                repository.rmdir()
    except Timeout as exc:
        raise RepositoryError(
            f"another gourmet is still at work in {repository}: repeat this after it"
        ) from exc
    except OSError as exc:
        raise RepositoryError(
            f"{repository} cannot be written ({exc.strerror or exc}): make room there, or name another"
        ) from exc
