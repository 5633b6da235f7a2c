"""Where corrections are kept: in a folder of this machine, or in a bucket that many web apps share.

Both have `SYSTEM/LABEL/PICTURE.jpg`, as `gourmet learn-more` reads it. A photo has one label, the last one
that was said of it; its name begins with the digest of its pixels.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from PIL import Image

from app.core.errors import Overloaded, RefusedRequest
from gourmet.client.deadline import Deadline
from gourmet.pictures.decode import Pixels
from gourmet.runtime.files import written_aside
from gourmet.runtime.object_store import (
    check_object_name,
    delete_object,
    is_object,
    names_below,
    put_object,
)
from gourmet.runtime.turns import Turns

MOST: Final = 10_000
# Of a process at a time, of a client fewer, so that a bucket that hangs holds no more threads; others wait
# for so long.
_AT_A_TIME: Final = 8
_WAIT_S: Final = 2.0


class CorrectionStore(Protocol):
    def keep(self, system: str, label_folder: str, pixels: Pixels, deadline: Deadline) -> None:
        """Put a picture into the folder of its label, and nowhere else.

        OSError or GourmetError where that cannot be done at the moment.
        """


def store_at(place: str) -> CorrectionStore:
    return InBucket(place) if is_object(place) else InFolder(Path(place))


class InFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, system: str, label_folder: str, pixels: Pixels, deadline: Deadline) -> None:
        folder, name = self._folder / system, f"{_digest(pixels)}.jpg"
        with _alone_in(folder):
            before = list(folder.glob(f"*/{name}"))
            if not before and sum(1 for _ in folder.glob("*/*.jpg")) >= MOST:
                raise _full()
            place = folder / label_folder
            place.mkdir(exist_ok=True, mode=0o700)
            with written_aside(place / name) as aside:
                aside.touch(mode=0o600)
                aside.write_bytes(_jpeg(pixels))
            for path in before:
                if path.parent != place:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other thread or worker keeps one meanwhile, where the file system has locks of folders."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


class InBucket:
    """A bucket has no locks, so that each correction is an object with a name of its own, which says when.

    After writing, all objects of the photo are listed, and all but the newest of them deleted. No name is
    used twice, so that nobody deletes what is newer than their list, and the last to list deletes the rest.
    """

    def __init__(self, name: str) -> None:
        check_object_name(name)
        self._name = name.rstrip("/")
        self._turns = Turns(_AT_A_TIME)

    def keep(self, system: str, label_folder: str, pixels: Pixels, deadline: Deadline) -> None:
        end = time.monotonic() + min(_WAIT_S, deadline.left_s())
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._turns.turn(deadline.client, lambda: time.monotonic() >= end))
            except TimeoutError as exc:
                raise Overloaded("corrections") from exc
            self._keep(f"{self._name}/{system}", label_folder, pixels, deadline)

    def _keep(self, at: str, label_folder: str, pixels: Pixels, deadline: Deadline) -> None:
        digest = _digest(pixels)
        # Before it is written: what may be written to and not listed would grow without an end.
        listed = _listed(at, deadline)
        is_new = not _of(digest, listed)
        if is_new and len(listed) >= MOST:
            raise _full()
        kept = f"{at}/{label_folder}/{digest}-{time.time_ns():016x}{os.urandom(4).hex()}.jpg"
        put_object(kept, _jpeg(pixels))
        listed = _listed(at, deadline)
        if is_new and len(listed) > MOST:  # others kept theirs meanwhile
            delete_object(kept)
            raise _full()
        for older in _of(digest, listed)[:-1]:
            delete_object(older)


def _listed(at: str, deadline: Deadline) -> Sequence[str]:
    found = []
    for name in names_below(at, soon=True):
        found.append(name)
        if deadline.passed:
            raise TimeoutError(f"{at} was not listed in time")
    return found


def _of(digest: str, names: Sequence[str]) -> Sequence[str]:
    """The names of one photo, the newest last."""
    those = (name for name in names if name.rpartition("/")[2].startswith(digest))
    return sorted(those, key=lambda name: name.rpartition("-")[2])


def _digest(pixels: Pixels) -> str:
    return hashlib.sha256(pixels.tobytes()).hexdigest()[:32]


def _jpeg(pixels: Pixels) -> bytes:
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "JPEG", quality=92)
    return picture.getvalue()


def _full() -> RefusedRequest:
    return RefusedRequest(
        "corrections_full", f"{MOST:,} corrections are kept already, which is all that this site takes"
    )
