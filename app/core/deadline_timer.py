"""Calls made unless something is done in time, by one thread for all of them.

A timer of its own for every request would start a thread for every request, and starting one waits
until it runs.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator


class DeadlineTimer:
    """Calls what it was given for whatever is not done within its time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._looks_at = float("inf")
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def within(self, seconds: float, give_up: Callable[[], None]) -> Iterator[None]:
        """Call `give_up`, from another thread, if the block lasts longer than `seconds`."""
        number, end = next(self._numbers), time.monotonic() + seconds
        with self._changed:
            self._waiting[number] = (end, give_up)
            if self._thread is None:  # not before it is needed: gunicorn forks its workers first
                self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._thread.start()
            elif end < self._looks_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(number, None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                # For what was done in time this thread wakes up once: cheaper than being notified of each.
                self._looks_at = min((end for end, _ in self._waiting.values()), default=float("inf"))
                left = self._looks_at - time.monotonic()
                if left > 0:
                    self._changed.wait(None if left == float("inf") else left)
                    continue
                late = [number for number, (end, _) in self._waiting.items() if end <= time.monotonic()]
                calls = [self._waiting.pop(number)[1] for number in late]
            for call in calls:
                call()
