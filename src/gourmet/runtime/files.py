"""Files that are whole or not there; folders of running programs; and where what a user makes lies."""

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


_LOCK: Final = "lock"


def new_token() -> str:
    """What makes a name that nothing else has."""
    return secrets.token_hex(6)


class RunFolder:
    """A folder of a running program, which the next one like it removes where that program was killed: a new
    folder in `within`, or else in the temporary one, that only this user may enter.

    Processes that inherit `lock` are parts of the program. Files beside the folder whose names begin with
    its own and a hyphen belong to it, and go with it.
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
            os.close(self.lock)  # another program took it for abandoned before it was locked

    def beside(self) -> list[Path]:
        """This user's files beside it."""
        return _beside(self.path)

    def remove_beside(self) -> None:
        _remove_beside(self.path)

    def close(self) -> None:
        """Remove it; twice does no harm."""
        if self.lock >= 0:
            _remove(self.path)
            os.close(self.lock)
            self.lock = -1


def _abandoned(prefix: str, within: Path) -> Iterator[tuple[Path, int]]:
    """This user's folders of that name which no process has locked, and their locks, now ours."""
    for path in within.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # without a lock it is not one of these, or still being made
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            yield path, lock


def _remove(path: Path) -> None:
    _remove_beside(path)  # first: while the folder stands they can be found again
    shutil.rmtree(path, ignore_errors=True)


def _beside(path: Path) -> list[Path]:
    found = []
    for file in path.parent.glob(f"{path.name}-*"):
        with contextlib.suppress(OSError):
            if file.lstat().st_uid == os.geteuid():
                found.append(file)
    return found


def _remove_beside(path: Path) -> None:
    for file in _beside(path):
        file.unlink(missing_ok=True)


_PACKAGE: Final = Path(__file__).parents[1]
# A wheel carries the repository's folders of data in this one (setup.py).
_BUNDLE: Final = _PACKAGE / "_bundle"
IS_INSTALLED: Final = _BUNDLE.is_dir()


def shipped(folder: str) -> Path:
    """Where a folder of the repository lies, such as triton/models: in a checkout or an installed package."""
    return (_BUNDLE if IS_INSTALLED else _PACKAGE.parents[1]) / folder


HOME_ENV: Final = "GOURMET_HOME"
_USUAL: Final = (("XDG_DATA_HOME", "gourmet"), ("HOME", ".local/share/gourmet"))
_WITHOUT_HOME: Final = Path("/var/lib/gourmet")


def home() -> Path:
    """GOURMET_HOME, or the user's folder of data; it need not be there."""
    if given := os.environ.get(HOME_ENV):
        return Path(given).absolute()
    for name, below in _USUAL:
        # Relative to a folder that anyone writes to, such as the web app's, it would be somebody else's.
        if (folder := Path(os.environ.get(name, ""))).is_absolute():
            return folder / below
    return _WITHOUT_HOME


def own_systems() -> Path:
    return home() / "systems"


def own_models() -> Path:
    """The user's model repository, which `gourmet up` serves beside the checkout's."""
    return home() / "models"
