"""A bounded queue that shares places fairly between clients, for web requests, heat maps and decoders."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

# How often a waiting request checks whether it gave up.
_POLL_S: Final = 0.1


class QueueFull(Exception):
    """The queue is full."""


class FairQueue:
    """Let at most `places` requests work at a time, and at most `max_waiting` others wait for a place.

    First come, first served, with three limits. A client that has half of the places waits while a client
    with fewer waits. A client has at most half of `max_waiting`. It never has more than `max_per_client`
    places, even if nobody else waits. Requests without a client name come from this machine and may have all
    places.
    """

    def __init__(self, places: int, max_waiting: float = math.inf, max_per_client: float = math.inf) -> None:
        self._free = places
        self._max_waiting, self._max_per_client = max_waiting, max_per_client
        self._half = (places + 1) // 2
        self._held = Counter[str]()
        self._waiting: list[tuple[str, threading.Event]] = []
        self._lock = threading.Lock()

    def acquire(self, client: str, gave_up: Callable[[], bool]) -> float:
        """Wait for a place and return the seconds waited; raise QueueFull, or TimeoutError on `gave_up`."""
        started = time.monotonic()
        waiter = client, threading.Event()
        with self._lock:
            self._waiting.append(waiter)
            self._admit()
            if waiter not in self._waiting:
                return 0.0
            if self._is_too_long(client):
                self._waiting.remove(waiter)
                raise QueueFull
        while not waiter[1].wait(_POLL_S):
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
            self._admit()

    @contextlib.contextmanager
    def place(self, client: str, gave_up: Callable[[], bool]) -> Iterator[None]:
        """Hold a place within the block; raise the errors of `acquire`."""
        self.acquire(client, gave_up)
        try:
            yield
        finally:
            self.release(client)

    def _is_too_long(self, client: str) -> bool:
        of_client = sum(name == client for name, _ in self._waiting)
        return len(self._waiting) > self._max_waiting or of_client > (self._max_waiting + 1) // 2

    def _admit(self) -> None:
        while self._free and (waiter := self._next()):
            self._waiting.remove(waiter)
            self._free -= 1
            self._held[waiter[0]] += 1
            waiter[1].set()

    def _next(self) -> tuple[str, threading.Event] | None:
        for limit in (self._half, math.inf):
            for client, admitted in self._waiting:
                if not client or self._held[client] < min(limit, self._max_per_client):
                    return client, admitted
        return None
