"""Photos to send, an eye on what servers take and what a machine gives."""

from __future__ import annotations

import contextlib
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from support.repeating import Repeating

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
    """Return the total size of these processes; ended ones are left out."""
    memory, descriptors, threads = 0.0, 0, 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_full_info().uss / 2**20
            descriptors += process.num_fds()
            threads += process.num_threads()
    return Size(time.monotonic(), memory, descriptors, threads)


class ResourceUse(Repeating):
    """Looks now and then at what processes take: those of a kind, which `find` gives by name, together."""

    def __init__(self, find: Callable[[], Mapping[str, list[psutil.Process]]], every_s: float = 1.0) -> None:
        super().__init__(self._look, every_s=every_s)
        self._find = find
        self.sizes: dict[str, list[Size]] = {kind: [] for kind in find()}

    def growth(self, what: Callable[[Size], float], warm_up: float = 0.1) -> dict[str, tuple[float, float]]:
        """The middle value of the first and of the last third of the time after the warm-up, by kind."""
        by_kind = {}
        for kind, sizes in self.sizes.items():
            values = [what(size) for size in sizes[int(len(sizes) * warm_up) :]]
            third = max(1, len(values) // 3)
            by_kind[kind] = (statistics.median_high(values[:third]), statistics.median_high(values[-third:]))
        return by_kind

    def _look(self, *_: int) -> None:
        for kind, processes in self._find().items():
            self.sizes[kind].append(size_of(processes))


class CpuPace(Repeating):
    """How much the machine does in a second of CPU: those of a host that others share are not all alike.

    A little work is done twice a second, and its CPU counted, which tells the same with and without load.
    """

    def __init__(self, every_s: float = 0.5) -> None:
        super().__init__(self._look, every_s=every_s)
        self._found: list[tuple[float, float]] = []

    def between(self, begin: float, end: float) -> float:
        """The middle value of that time, in rounds a second."""
        return statistics.median(pace for at, pace in self._found if begin <= at < end)

    def _look(self, *_: int) -> None:
        began = time.thread_time()
        for _ in range(_ROUNDS):
            zlib.compress(_WORK)  # which leaves the interpreter to the other threads
        self._found.append((time.monotonic(), _ROUNDS / (time.thread_time() - began)))
