"""Something that is done again and again in threads while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Self


class Repeating:
    """While its block runs, `threads` call `work` with their number and their turn, `every_s` apart.

    What one of them raises, which ends that thread, is raised when the block ends.
    """

    def __init__(self, work: Callable[[int, int], object], threads: int = 1, every_s: float = 0.0) -> None:
        self._work, self._threads, self._every_s = work, threads, every_s
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._threads)
        self._running = [self._pool.submit(self._repeat, thread) for thread in range(self._threads)]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()
        for future in self._running:
            future.result()

    def _repeat(self, thread: int) -> None:
        for turn in count():
            if self._over.wait(self._every_s):
                return
            self._work(thread, turn)
