"""Atomic writes, folders of running programs, and the paths of the repository's and the user's files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. It replaces `path` if the block ends without an error.

    Its name is random, so that another user of the folder cannot put a link or a FIFO there before.
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
    """Write a text file atomically."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


_LOCK: Final = "lock"


def new_token() -> str:
    """Return a random token that makes a name unique."""
    return secrets.token_hex(6)


class RunFolder:
    """A new folder of a running program in `within`, or in the temporary folder. Only this user may enter it.

    If the program is killed, the next program with the same prefix removes the folder. Processes that inherit
    `lock` are parts of the program. Files beside the folder whose names begin with the folder's name and a
    hyphen belong to it, and are removed with it.
    """

    def __init__(self, prefix: str, within: Path | None = None, token: str = "") -> None:
        within = within or Path(tempfile.gettempdir())
        self.path = within / f"{prefix}{token or new_token()}"
        for abandoned, lock in _abandoned(prefix, within):
            _remove(abandoned)
            os.close(lock)
        while True:
            self.path.mkdir(mode=0o700)
            self.lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            if os.fstat(self.lock).st_nlink:
                return
            os.close(self.lock)  # another program removed it as abandoned before it was locked

    def remove_beside(self) -> None:
        _remove_beside(self.path)

    def close(self) -> None:
        """Remove the folder. A second call does nothing."""
        if self.lock >= 0:
            _remove(self.path)
            os.close(self.lock)
            self.lock = -1


def _abandoned(prefix: str, within: Path) -> Iterator[tuple[Path, int]]:
    """Lock and yield this user's folders with that prefix that no process has locked, each with its lock."""
    for path in within.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # a folder without a lock is another program's, or not ready yet
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            yield path, lock


def _remove(path: Path) -> None:
    _remove_beside(path)  # first: if this is interrupted, the folder leads to them again
    shutil.rmtree(path, ignore_errors=True)


def _remove_beside(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}-*"):
        with contextlib.suppress(FileNotFoundError):
            if file.lstat().st_uid == os.geteuid():
                file.unlink()


_PACKAGE: Final = Path(__file__).parents[1]
# A wheel carries the repository's data folders in this folder (setup.py).
_BUNDLE: Final = _PACKAGE / "_bundle"
IS_INSTALLED: Final = _BUNDLE.is_dir()


def shipped(folder: str) -> Path:
    """Return the path of a folder of the repository, such as triton/models, in a checkout or a wheel."""
    return (_BUNDLE if IS_INSTALLED else _PACKAGE.parents[1]) / folder


HOME_ENV: Final = "GOURMET_HOME"
_DEFAULT_HOMES: Final = (("XDG_DATA_HOME", "gourmet"), ("HOME", ".local/share/gourmet"))
_HOME_OF_LAST_RESORT: Final = Path("/var/lib/gourmet")


def home() -> Path:
    """Return GOURMET_HOME, or else the user's data folder. The folder may not exist."""
    if home_path := os.environ.get(HOME_ENV):
        return Path(home_path).absolute()
    for name, below in _DEFAULT_HOMES:
        # A relative path may lead into a folder that others write to, such as the web app's.
        if (folder := Path(os.environ.get(name, ""))).is_absolute():
            return folder / below
    return _HOME_OF_LAST_RESORT


def own_systems() -> Path:
    return home() / "systems"


def own_models() -> Path:
    """Return the user's model repository. `gourmet up` serves it beside the checkout's."""
    return home() / "models"
