"""Measure a network without a server: processes that each have a session and a number of threads."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from gourmet.measure.task import MeasureOptions
from gourmet.runtime.instances import available_cpus
from harness.windows import BenchLoad, BenchWindow, CpuUsed

_STARTS_WITHIN_S: Final = 120.0

# Computes the example of a number; raises WrongAnswers where the answer is not the expected one.
Compute = Callable[[int], None]


@dataclass(frozen=True)
class Layout:
    """One way to use the machine: a number of sessions, and of threads for each."""

    sessions: int
    threads: int

    def __str__(self) -> str:
        return f"{self.sessions} × {self.threads}"


def full_layouts() -> list[Layout]:
    """Return the layouts that use all CPUs: one session, or a session for each CPU."""
    return [Layout(*pair) for pair in sorted({(1, available_cpus()), (available_cpus(), 1)})]


def no_server(
    load: BenchLoad,
    layout: Layout,
    options: MeasureOptions,
    make: Callable[..., Compute],
    *arguments: Any,
) -> BenchWindow:
    """Measure a layout; `make(*arguments, threads)` opens the network in each process.

    A session has a process, since threads share the GIL and were a tenth slower.
    """
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(layout.sessions)
    with ProcessPoolExecutor(
        layout.sessions,
        mp_context=context,
        initializer=_open,
        initargs=(make, (*arguments, layout.threads), together),
    ) as pool:
        before, began = CpuUsed.now(), time.perf_counter()
        working = [pool.submit(_work, options.warm_up_s, options.measure_s) for _ in range(layout.sessions)]
        results = [future.result() for future in working]
        foreign_cores = CpuUsed.now().foreign_since(before) / (time.perf_counter() - began)
    latencies_ms = tuple(took_ms for took, _, _ in results for took_ms in took)
    seconds, cpu_s = sum(wall for _, wall, _ in results), sum(cpu for _, _, cpu in results)
    cpu_ms = {"process": 1000 * cpu_s / max(1, len(latencies_ms))}
    return BenchWindow(load, seconds / len(results), latencies_ms, foreign_cores, cpu_ms=cpu_ms)


_compute: list[Compute] = []


def _open(make: Callable[..., Compute], arguments: tuple[Any, ...], together: Any) -> None:
    """Prepare a process, and wait until all others are ready."""
    _compute.append(make(*arguments))
    _compute[0](0)
    together.wait(_STARTS_WITHIN_S)


def _work(warm_up_s: float, measure_s: float) -> tuple[list[float], float, float]:
    """Compute examples in turn; return the milliseconds of each, and the seconds and CPU seconds of all."""
    numbers, latencies_ms = itertools.count(), list[float]()
    ends = time.perf_counter() + warm_up_s
    while time.perf_counter() < ends:
        _compute[0](next(numbers))
    busy_s, began = time.process_time(), time.perf_counter()
    while (sent := time.perf_counter()) < began + measure_s:
        _compute[0](next(numbers))
        latencies_ms.append(1000 * (time.perf_counter() - sent))
    return latencies_ms, time.perf_counter() - began, time.process_time() - busy_s
