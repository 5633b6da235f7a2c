"""What ONNX Runtime does by itself on this machine, without a server: the bar a served model is held to.

Every layout of sessions and threads runs in fresh processes that start together, and all must give the
same answer.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.contracts import Array, Tensors
from gourmet.errors import GourmetError
from gourmet.runtime.instances import available_cpus

_WARM_UP_RUNS: Final = 10
# Two ways to share a product among threads round differently; more than this is a different answer.
_RELATIVE_TOLERANCE: Final = 1e-3
_ABSOLUTE_TOLERANCE: Final = 1e-4


class RawOnnxError(GourmetError):
    """The model cannot be run raw, or its answers depend on how it is run."""


@dataclass(frozen=True)
class Layout:
    """One way to use the machine: so many processes, each with one session of so many threads."""

    processes: int
    threads: int

    def __str__(self) -> str:
        sessions, threads = "s" * (self.processes > 1), "s" * (self.threads > 1)
        return f"{self.processes} session{sessions} × {self.threads} thread{threads}"


@dataclass(frozen=True)
class LayoutResult:
    """How one layout did; latencies are of single runs."""

    layout: Layout
    runs_per_s: float
    mean_ms: float
    p50_ms: float


@dataclass(frozen=True)
class Seen:
    """What one process saw: when it began and ended, each run's seconds, its answer."""

    started: float
    ended: float
    latencies_s: Array
    answer: list[Array]


def usual_layouts(cpus: int) -> tuple[Layout, ...]:
    """One session on one thread, one session on all CPUs, one session per CPU."""
    return (Layout(1, 1),) if cpus == 1 else (Layout(1, 1), Layout(1, cpus), Layout(cpus, 1))


def measure(
    model: Path, feeds: Tensors, *, seconds: float = 3.0, layouts: Sequence[Layout] = ()
) -> list[LayoutResult]:
    """Run `model` on `feeds` for `seconds` in every layout."""
    chosen = layouts or usual_layouts(available_cpus())
    seen = {layout: _run(model, feeds, layout, seconds) for layout in chosen}
    first, expected = chosen[0], seen[chosen[0]][0].answer
    for layout, processes in seen.items():
        pairs = (pair for process in processes for pair in zip(process.answer, expected, strict=True))
        if not all(np.allclose(got, right, _RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE) for got, right in pairs):
            raise RawOnnxError(f"{layout} and {first} answer the same input differently: measure neither")
    return [summarise(layout, processes) for layout, processes in seen.items()]


def summarise(layout: Layout, processes: Sequence[Seen]) -> LayoutResult:
    """The result of a layout out of what its processes saw."""
    took_ms = 1000 * np.concatenate([seen.latencies_s for seen in processes])
    wall_s = max(seen.ended for seen in processes) - min(seen.started for seen in processes)
    return LayoutResult(layout, took_ms.size / wall_s, float(took_ms.mean()), float(np.median(took_ms)))


def _run(model: Path, feeds: Tensors, layout: Layout, seconds: float) -> list[Seen]:
    # Spawned, not forked: the caller may hold threads and locks, and each layout is to start alike.
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(layout.processes, mp_context=context) as pool:
        given = model, feeds, layout.threads, seconds, manager.Barrier(layout.processes)
        asked = [pool.submit(_work, *given) for _ in range(layout.processes)]
        return [future.result() for future in asked]


def _work(model: Path, feeds: Tensors, threads: int, seconds: float, together: Any) -> Seen:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised
    try:
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        answer = [session.run(None, feeds) for _ in range(_WARM_UP_RUNS)][-1]
    except Exception as exc:
        together.abort()
        raise RawOnnxError(f"{model} cannot be run by ONNX Runtime: {exc}") from exc
    together.wait(timeout=120)
    latencies = []
    started = now = time.perf_counter()
    while now - started < seconds:
        session.run(None, feeds)
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    return Seen(started, now, np.array(latencies), answer)
