"""Photos to send, an eye on what servers take and what a machine gives."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

ROOT = Path(__file__).parents[2]
_WORK = bytes(range(256)) * 400
_ROUNDS = 5
SAMPLES = sorted((ROOT / "tests" / "drawings").glob("*.jpg"))


@dataclass(frozen=True)
class Size:
    at: float
    memory_mib: float
    descriptors: int
    threads: int


def size_of(processes: Iterable[psutil.Process]) -> Size:
    """What these take together, without those that ended meanwhile."""
    memory, descriptors, threads = 0.0, 0, 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_full_info().uss / 2**20
            descriptors += process.num_fds()
            threads += process.num_threads()
    return Size(time.monotonic(), memory, descriptors, threads)


class Sampler:
    """Calls `look` every so often in a thread, within a `with` block."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            self.look()

    def look(self) -> None:
        raise NotImplementedError


class Watch(Sampler):
    """Looks once a second at what a process and those under it take."""

    def __init__(self, pid: int, every_s: float = 1.0) -> None:
        super().__init__(every_s)
        self._root = psutil.Process(pid)
        self.sizes: list[Size] = []

    def most(self, what: Callable[[Size], float], begin: float, end: float) -> float:
        return max(what(size) for size in self.sizes if begin <= size.at < end)

    def look(self) -> None:
        self.sizes.append(size_of([self._root, *self._root.children(recursive=True)]))


class Pace(Sampler):
    """How much the machine does in a second of CPU: those of a host that others share are not all alike.

    A little work is done twice a second, and its CPU counted, which tells the same with and without load.
    """

    def __init__(self, every_s: float = 0.5) -> None:
        super().__init__(every_s)
        self._found: list[tuple[float, float]] = []

    def between(self, begin: float, end: float) -> float:
        """The middle value of that time, in rounds a second."""
        return statistics.median(pace for at, pace in self._found if begin <= at < end)

    def look(self) -> None:
        began = time.thread_time()
        for _ in range(_ROUNDS):
            zlib.compress(_WORK)  # which leaves the interpreter to the other threads
        self._found.append((time.monotonic(), _ROUNDS / (time.thread_time() - began)))
