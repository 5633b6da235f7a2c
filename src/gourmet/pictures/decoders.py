"""A few processes that decode pictures whose decoders are trusted with nothing (`gourmet.runtime.sandbox`).

They are started when they are first needed, for whatever is not known by its header to be harmless
(`header.Header.is_harmless`), kept for the next such picture, and replaced when they ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.sandbox import Ended, Facts, Limits, Refused, Sandbox
from gourmet.runtime.turns import Turns

# The most expensive honest picture, fifty million pixels in ten scans, takes a second of a processor of 2024.
CPU_S: Final = 3.0
WALL_S: Final = 8.0
# What a picture may take: 300 MB and some reserve of malloc's. None is written to a disk.
LIMITS: Final = Limits(CPU_S, WALL_S, memory_bytes=400_000_000)
# Ordinary pictures take less, and another waits so long for a place.
_SOON_S: Final = 0.5


@dataclass(frozen=True)
class Client:
    """Until when somebody waits for pixels, unless cancelled; `places` are those of the server that asks."""

    deadline: float = float("inf")
    is_cancelled: Callable[[], bool] = lambda: False
    name: str = ""
    places: Turns | None = None

    def has_left(self) -> bool:
        return time.monotonic() > self.deadline or self.is_cancelled()


_client: Final[ContextVar[Client | None]] = ContextVar("client", default=None)


@contextlib.contextmanager
def decoding_for(
    seconds: float, is_cancelled: Callable[[], bool], name: str = "", places: Turns | None = None
) -> Iterator[None]:
    """Around what decodes pictures for a client that waits so long, unless it is cancelled."""
    token = _client.set(Client(time.monotonic() + seconds, is_cancelled, name, places))
    try:
        yield
    finally:
        _client.reset(token)


def turns(places: int) -> Turns:
    """Places of which a client never has more than half, since some pictures hold theirs for seconds."""
    return Turns(places, max_per_client=(places + 1) // 2)


@contextlib.contextmanager
def place(places: Turns, client: str) -> Iterator[None]:
    """Around whatever waits for such a picture, here or in another server; raises DecodersBusy."""
    end = time.monotonic() + _SOON_S
    with _turn(places, client, lambda: time.monotonic() > end):
        yield


@contextlib.contextmanager
def _turn(turns: Turns, client: str, gave_up: Callable[[], bool]) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(turns.turn(client, gave_up))
        except TimeoutError:
            raise DecodersBusy("no decoder was free in time") from None
        yield


class Decoders:
    """At most so many processes, for any number of threads."""

    def __init__(self, processes: int) -> None:
        self._turns = turns(processes)
        # The one that was used last is used next.
        self._idle: list[Sandbox] = []

    def ask(self, facts: Facts, data: bytes) -> tuple[Facts, bytes]:
        """What a process makes of it; raises PictureError or DecodersBusy."""
        client = _client.get() or Client()
        with contextlib.ExitStack() as held:
            if client.places:
                held.enter_context(place(client.places, client.name))
            held.enter_context(_turn(self._turns, client.name, client.has_left))
            if client.has_left():
                raise DecodersBusy("nobody waits for it any more")
            return self._ask(facts, data, client)

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
