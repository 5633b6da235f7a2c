"""What the tests of this tier have in common: photos to send, and an eye on what a server takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "app" / "static" / "samples").glob("*.jpg"))


@dataclass(frozen=True)
class Size:
    at: float
    memory_mib: float
    descriptors: int
    threads: int


class Watch:
    """Looks once a second at what a process and those under it take."""

    def __init__(self, pid: int, every_s: float = 1.0) -> None:
        self._root = psutil.Process(pid)
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self.sizes: list[Size] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def most(self, what: Callable[[Size], float], begin: float, end: float) -> float:
        return max(what(size) for size in self.sizes if begin <= size.at < end)

    def _look(self) -> None:
        while not self._ending.wait(self._every_s):
            memory, descriptors, threads = 0.0, 0, 0
            for process in [self._root, *self._root.children(recursive=True)]:
                try:
                    memory += process.memory_full_info().uss / 2**20
                    descriptors += process.num_fds()
                    threads += process.num_threads()
                except psutil.Error:  # it ended meanwhile
                    continue
            self.sizes.append(Size(time.monotonic(), memory, descriptors, threads))
