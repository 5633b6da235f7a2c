"""An answer that is asked for at most so often, however many want it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TtlCache(Generic[T]):
    """What `ask` gave, and asked again by one of those who want it once it is `age_s` old.

    While somebody asks, which may take seconds, the others are told what was so before.
    """

    def __init__(self, ask: Callable[[], T], age_s: float) -> None:
        self._ask = ask
        self._age_s = age_s
        self._lock = threading.Lock()
        self._known: tuple[float, T] | None = None

    def get(self) -> T:
        known = self._known
        if not self._lock.acquire(blocking=known is None) and known:
            return known[1]
        try:
            if self._known is None or time.monotonic() - self._known[0] >= self._age_s:
                found = self._ask()
                self._known = time.monotonic(), found
            return self._known[1]
        finally:
            self._lock.release()
