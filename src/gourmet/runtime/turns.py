"""A bounded queue for places at the work: for the web's requests, heat maps, and processes that decode."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

# How often a waiting request checks whether it gave up.
_LOOK_S: Final = 0.1


class QueueFull(Exception):
    """Too many wait already."""


class Turns:
    """At most `places` requests at work at a time; at most `max_waiting` others wait for one of the places.

    First come, first served. But a client that has half of the places waits while a client with fewer waits,
    and one client has at most half of `max_waiting`. A client never has more than `max_per_client`, even
    while nobody else waits. Work without a client's name is this machine's own, and may have all places.
    """

    def __init__(self, places: int, max_waiting: float = math.inf, max_per_client: float = math.inf) -> None:
        self._free = places
        self._max_waiting, self._max_per_client = max_waiting, max_per_client
        self._half = (places + 1) // 2
        self._held = Counter[str]()
        self._waiting: list[tuple[str, threading.Event]] = []
        self._lock = threading.Lock()

    def acquire(self, client: str, gave_up: Callable[[], bool]) -> float:
        """Wait for a place and return for how many seconds.

        Raise QueueFull, or TimeoutError where `gave_up` returned true before.
        """
        started = time.monotonic()
        waiter = client, threading.Event()
        with self._lock:
            self._waiting.append(waiter)
            self._begin_next()
            if waiter not in self._waiting:
                return 0.0
            if self._is_too_long(client):
                self._waiting.remove(waiter)
                raise QueueFull
        while not waiter[1].wait(_LOOK_S):
            if gave_up():
                with self._lock:
                    if waiter in self._waiting:
                        self._waiting.remove(waiter)
                        raise TimeoutError
        return time.monotonic() - started

    def release(self, client: str) -> None:
        with self._lock:
            self._free += 1
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]
            self._begin_next()

    @contextlib.contextmanager
    def turn(self, client: str, gave_up: Callable[[], bool]) -> Iterator[None]:
        """Around the work; raise what `acquire` raises."""
        self.acquire(client, gave_up)
        try:
            yield
        finally:
            self.release(client)

    def _is_too_long(self, client: str) -> bool:
        mine = sum(name == client for name, _ in self._waiting)
        return len(self._waiting) > self._max_waiting or mine > (self._max_waiting + 1) // 2

    def _begin_next(self) -> None:
        while self._free and (waiter := self._next()):
            self._waiting.remove(waiter)
            self._free -= 1
            self._held[waiter[0]] += 1
            waiter[1].set()

    def _next(self) -> tuple[str, threading.Event] | None:
        for limit in (self._half, math.inf):
            for client, begins in self._waiting:
                if not client or self._held[client] < min(limit, self._max_per_client):
                    return client, begins
        return None
