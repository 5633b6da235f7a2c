"""A bounded queue that shares places fairly between clients, for web requests, heat maps and decoders."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


class QueueFull(Exception):
    """The queue is full."""


@dataclass(eq=False)
class _Waiter:
    client: str
    ended: threading.Event = field(default_factory=threading.Event)
    is_admitted: bool = False


class FairQueue:
    """Let at most `places` requests work at a time, and at most `max_waiting` others wait for a place.

    First come, first served, with three limits. A client that has half of the places waits while a client
    with fewer waits. When too many wait, the client with the most loses its newest request. A client never
    has more than `max_per_client` places, even if nobody else waits. Requests without a client name come from
    this machine and may have all places.
    """

    def __init__(self, places: int, max_waiting: float = math.inf, max_per_client: float = math.inf) -> None:
        self._free = places
        self._max_waiting, self._max_per_client = max_waiting, max_per_client
        self._half = (places + 1) // 2
        self._held = Counter[str]()
        self._waiting: list[_Waiter] = []
        self._lock = threading.Lock()

    def acquire(self, client: str, until: float, has_left: Callable[[], bool] = lambda: False) -> float:
        """Wait for a place and return the seconds waited.

        Raise QueueFull; raise TimeoutError at `until` (of time.monotonic), or if `has_left` when the place
        is free. A thread sleeps until then: a thousand that look ten times a second take a core.
        """
        started = time.monotonic()
        waiter = _Waiter(client)
        with self._lock:
            self._waiting.append(waiter)
            self._admit()
            if waiter not in self._waiting:
                return 0.0
            if len(self._waiting) > self._max_waiting:
                self._drop_one(client)
        waiter.ended.wait(min(until - started, threading.TIMEOUT_MAX))
        with self._lock:
            if not waiter.is_admitted:
                if waiter not in self._waiting:
                    raise QueueFull
                self._waiting.remove(waiter)
                raise TimeoutError
        if has_left():
            self.release(client)
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
    def place(
        self, client: str, until: float, has_left: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Hold a place within the block; raise the errors of `acquire`."""
        self.acquire(client, until, has_left)
        try:
            yield
        finally:
            self.release(client)

    def _drop_one(self, newcomer: str) -> None:
        """Refuse the newest request of the client with the most; of those with as many, `newcomer`."""
        counts = Counter(waiter.client for waiter in self._waiting)
        greediest = max(counts, key=lambda client: (counts[client], client == newcomer))
        dropped = next(waiter for waiter in reversed(self._waiting) if waiter.client == greediest)
        self._waiting.remove(dropped)
        dropped.ended.set()

    def _admit(self) -> None:
        while self._free and (waiter := self._next()):
            self._waiting.remove(waiter)
            self._free -= 1
            self._held[waiter.client] += 1
            waiter.is_admitted = True
            waiter.ended.set()

    def _next(self) -> _Waiter | None:
        for limit in (self._half, math.inf):
            for waiter in self._waiting:
                client = waiter.client
                if not client or self._held[client] < min(limit, self._max_per_client):
                    return waiter
        return None
