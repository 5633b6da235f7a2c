"""Pictures whose decoders are trusted with nothing, decoded by processes that can be ended.

A library that never returns cannot be interrupted in the process that called it. So whatever is not known
to be harmless (`header.Header.is_harmless`) goes to one of a few processes of `decoding_process`, which are
started when they are first needed, have limits of the kernel on time and memory, and are replaced when they
ended. Whoever waits stops waiting, and ends the process, when its client has left or its time is over.

A process ends by itself too: at its limits, and as soon as the one that started it has closed the connection
between them, which the kernel does for one that was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.runtime.instances import available_cpus

T = TypeVar("T")

# The dearest honest picture, fifty million pixels in ten scans, takes a second of a processor of 2024.
CPU_S: Final = 3.0
WALL_S: Final = 8.0
# So often whoever waits looks whether it should.
_LOOK_S: Final = 0.1
# Ordinary pictures take less.
_SOON_S: Final = 0.5
_ENDED_BY_A_LIMIT: Final = (-signal.SIGPROF, -signal.SIGALRM, -signal.SIGXCPU)

# To the process: what to do, a size in pixels, the length of the picture that follows.
ASKED: Final = struct.Struct("!BII")
# Back: whether it could be done, two numbers (height and width, or the length of the code of an error and
# nothing), and the length of what follows: pixels, or the error's code and message.
ANSWERED: Final = struct.Struct("!BIII")
_MOST_ANSWERED: Final = 100_000_000


@dataclass(frozen=True)
class Patience:
    """Until when somebody waits for pixels, while `wanted`, and how many may be waited for at a time."""

    until: float = float("inf")
    wanted: Callable[[], bool] = lambda: True
    at_once: int | None = None

    def is_over(self) -> bool:
        return time.monotonic() > self.until or not self.wanted()


_patience: Final[ContextVar[Patience | None]] = ContextVar("patience", default=None)


@contextlib.contextmanager
def patience(seconds: float, wanted: Callable[[], bool], at_once: int | None = None) -> Iterator[None]:
    """Around what decodes pictures for a client."""
    token = _patience.set(Patience(time.monotonic() + seconds, wanted, at_once))
    try:
        yield
    finally:
        _patience.reset(token)


@dataclass(frozen=True)
class Answer:
    height: int
    width: int
    body: bytes


class _Process:
    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        self._link.settimeout(_LOOK_S)
        with theirs:
            self._program = subprocess.Popen(
                [sys.executable, "-P", "-m", "gourmet.pictures.decoding_process"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # libtiff's complaints
                # One arena of malloc and no threads of BLAS, whose reserves count as its memory.
                env={**os.environ, "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    @property
    def is_alive(self) -> bool:
        return self._program.poll() is None

    def ask(self, task: int, size: int, data: bytes, wait: Patience) -> Answer:
        for part in (ASKED.pack(task, size, len(data)), data):
            unsent = memoryview(part)
            while unsent:
                unsent = unsent[self._patiently(partial(self._link.send, unsent), wait) :]
        done, height, width, length = ANSWERED.unpack(self._receive(ANSWERED.size, wait))
        if length > _MOST_ANSWERED:
            raise ConnectionError("an answer of impossible length")
        body = self._receive(length, wait)
        if not done:
            raise PictureError(body[:height].decode(), body[height:].decode(errors="replace"))
        return Answer(height, width, body)

    def _receive(self, length: int, wait: Patience) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            came = self._patiently(partial(self._link.recv, min(length - len(parts), 1 << 20)), wait)
            if not came:
                raise ConnectionError("it ended")
            parts += came
        return bytes(parts)

    def _patiently(self, step: Callable[[], T], wait: Patience) -> T:
        while True:
            try:
                return step()
            except TimeoutError:
                if wait.is_over():
                    raise

    def end(self) -> int:
        """Its exit status."""
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._program.wait(_LOOK_S)  # it is ended by the closing, or was before
        self._program.kill()
        return self._program.wait()


class Decoders:
    """At most so many processes, for any number of threads."""

    def __init__(self, processes: int) -> None:
        self._changed = threading.Condition()
        self._free = threading.Semaphore(processes)
        # The one that was used last is used next.
        self._idle: list[_Process] = []
        # Who waits for a picture, since when.
        self._since: dict[object, float] = {}

    def ask(self, task: int, size: int, data: bytes) -> Answer:
        """What a process makes of it; raises PictureError or DecodersBusy."""
        mine = _patience.get() or Patience()
        with self.place(mine.at_once):
            while not self._free.acquire(timeout=_LOOK_S):
                if mine.is_over():
                    raise DecodersBusy("no decoder was free in time")
            try:
                if mine.is_over():
                    raise DecodersBusy("nobody waits for it any more")
                until = min(mine.until, time.monotonic() + WALL_S)
                return self._ask(task, size, data, replace(mine, until=until))
            finally:
                self._free.release()

    @contextlib.contextmanager
    def place(self, most: int | None) -> Iterator[None]:
        """Around whatever waits for such a picture, here or in another server; raises DecodersBusy.

        Ordinary ones are soon done, and another waits a moment for their places; not for those of slow ones.
        """
        me = object()
        with self._changed:
            end = time.monotonic() + _SOON_S
            while most is not None and len(self._since) >= most:
                now = time.monotonic()
                slow = sum(since < now - _SOON_S for since in self._since.values())
                if slow >= most or now > end:
                    raise DecodersBusy(f"{len(self._since)} pictures are being decoded apart")
                self._changed.wait(_LOOK_S)
            self._since[me] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[me]
                self._changed.notify()

    def _ask(self, task: int, size: int, data: bytes, wait: Patience) -> Answer:
        process = self._take()
        try:
            answer = process.ask(task, size, data, wait)
        except PictureError:
            self._idle.append(process)
            raise
        except OSError as exc:  # it ended, or nobody waits for it any more
            status = process.end()
            if isinstance(exc, TimeoutError) or status in _ENDED_BY_A_LIMIT:
                raise PictureError(
                    "too_slow", "decoding this picture took too long: save it again as an ordinary JPEG"
                ) from exc
            raise PictureError(
                "broken_picture", "this picture cannot be decoded: its decoder failed on it"
            ) from exc
        except BaseException:
            process.end()
            raise
        self._idle.append(process)
        return answer

    def _take(self) -> _Process:
        while True:
            try:
                process = self._idle.pop()
            except IndexError:  # other threads take from it too
                return _Process()
            if process.is_alive:
                return process
            process.end()

    def close(self) -> None:
        """End the processes that are idle."""
        while self._idle:
            self._idle.pop().end()


decoders = Decoders(available_cpus())


def _after_fork() -> None:
    """Those of the parent are the parent's."""
    global decoders
    decoders = Decoders(available_cpus())


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: decoders.close())
