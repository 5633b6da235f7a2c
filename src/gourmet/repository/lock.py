"""One verb at a time changes a model repository: the next one waits until it has ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gourmet.repository import RepositoryError
from gourmet.runtime.signals import undone_by_sigterm

_WAITS_S: Final = 900.0
_POLL_S: Final = 0.1


@contextlib.contextmanager
def changing(repository: Path, say: Callable[[str], object], waits_s: float = _WAITS_S) -> Iterator[None]:
    """Hold the lock of `repository`, which is made if need be; taken twice it waits for itself.

    `say` is told where another has it. SIGTERM undoes what is done within. The lock is on the folder, so that
    it leaves no file, and ends with its process. It keeps programs of one machine apart, and nobody where the
    file system has no locks of folders, as some of networks.
    """
    with undone_by_sigterm():
        made = [each for each in (repository, *repository.parents) if not each.exists()]
        try:
            folder = _locked(repository, say, time.monotonic() + waits_s)
            try:
                yield
            finally:
                for each in made:
                    with contextlib.suppress(OSError):  # something is in it
                        each.rmdir()
                os.close(folder)
        except OSError as exc:
            raise RepositoryError(
                f"{repository} cannot be written ({exc.strerror or exc}): make room there, or name another"
            ) from exc


def _locked(repository: Path, say: Callable[[str], object], deadline: float) -> int:
    announced = False
    while True:
        repository.mkdir(parents=True, exist_ok=True)
        folder = os.open(repository, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not announced:
                say(f"another gourmet is at work in {repository}: waiting until it has ended")
            announced = True
        except OSError:
            return folder
        else:
            with contextlib.suppress(FileNotFoundError):  # who had it took the folder away again
                if os.path.samestat(os.fstat(folder), repository.stat()):
                    return folder
        os.close(folder)
        if time.monotonic() > deadline:
            raise RepositoryError(f"another gourmet is still at work in {repository}: repeat this after it")
        time.sleep(_POLL_S)
