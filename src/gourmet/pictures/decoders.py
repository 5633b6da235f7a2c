"""A few processes that decode pictures whose decoders are trusted with nothing (`gourmet.runtime.sandbox`).

They are started when they are first needed, for whatever is not known by its header to be harmless
(`header.Header.is_harmless`), kept for the next such picture, and replaced when they ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.sandbox import LOOK_S, Ended, Facts, Limits, Refused, Sandbox

# The most expensive honest picture, fifty million pixels in ten scans, takes a second of a processor of 2024.
CPU_S: Final = 3.0
WALL_S: Final = 8.0
# What a picture may take: 300 MB and some reserve of malloc's. None is written to a disk.
LIMITS: Final = Limits(CPU_S, WALL_S, memory_bytes=400_000_000)
# Ordinary pictures take less.
_SOON_S: Final = 0.5


@dataclass(frozen=True)
class Client:
    """Until when somebody waits for pixels, unless cancelled, and how many may be waited for at a time."""

    deadline: float = float("inf")
    is_cancelled: Callable[[], bool] = lambda: False
    at_once: int | None = None

    def has_left(self) -> bool:
        return time.monotonic() > self.deadline or self.is_cancelled()


_client: Final[ContextVar[Client | None]] = ContextVar("client", default=None)


@contextlib.contextmanager
def decoding_for(
    seconds: float, is_cancelled: Callable[[], bool], at_once: int | None = None
) -> Iterator[None]:
    """Around what decodes pictures for a client that waits so long, unless it is cancelled."""
    token = _client.set(Client(time.monotonic() + seconds, is_cancelled, at_once))
    try:
        yield
    finally:
        _client.reset(token)


class Decoders:
    """At most so many processes, for any number of threads."""

    def __init__(self, processes: int) -> None:
        self._changed = threading.Condition()
        self._free = threading.Semaphore(processes)
        # The one that was used last is used next.
        self._idle: list[Sandbox] = []
        # Who waits for a picture, since when.
        self._since: dict[object, float] = {}

    def ask(self, facts: Facts, data: bytes) -> tuple[Facts, bytes]:
        """What a process makes of it; raises PictureError or DecodersBusy."""
        client = _client.get() or Client()
        with self.place(client.at_once):
            while not self._free.acquire(timeout=LOOK_S):
                if client.has_left():
                    raise DecodersBusy("no decoder was free in time")
            try:
                if client.has_left():
                    raise DecodersBusy("nobody waits for it any more")
                return self._ask(facts, data, client)
            finally:
                self._free.release()

    @contextlib.contextmanager
    def place(self, at_once: int | None) -> Iterator[None]:
        """Around whatever waits for such a picture, here or in another server; raises DecodersBusy.

        Ordinary ones are soon done, and another waits a moment for their places; not for those of slow ones.
        """
        me = object()
        with self._changed:
            end = time.monotonic() + _SOON_S
            while at_once is not None and len(self._since) >= at_once:
                now = time.monotonic()
                slow = sum(since < now - _SOON_S for since in self._since.values())
                if slow >= at_once or now > end:
                    raise DecodersBusy(f"{len(self._since)} pictures are being decoded in sandboxes")
                self._changed.wait(LOOK_S)
            self._since[me] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[me]
                self._changed.notify()

    def _ask(self, facts: Facts, data: bytes, client: Client) -> tuple[Facts, bytes]:
        process = self._take()
        try:
            answer = process.ask(facts, data, client.has_left)
        except Refused as exc:
            self._idle.append(process)
            raise PictureError(exc.code, str(exc)) from exc
        except Ended as exc:
            if exc.too_slow:
                raise PictureError(
                    "too_slow", "decoding this picture took too long: save it again as an ordinary JPEG"
                ) from exc
            raise PictureError(
                "broken_picture", "this picture cannot be decoded: its decoder failed on it"
            ) from exc
        self._idle.append(process)
        return answer

    def _take(self) -> Sandbox:
        while True:
            try:
                process = self._idle.pop()
            except IndexError:  # other threads take from it too
                return Sandbox("gourmet.pictures.decoding_process", LIMITS)
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
