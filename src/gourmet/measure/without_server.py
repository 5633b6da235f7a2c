"""Run a model file without a server on this machine: the baseline for Triton."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.contracts import Array, Tensors
from gourmet.errors import GourmetError
from gourmet.runtime.instances import available_cpus

_WARM_UP_RUNS: Final = 3
# Two ways to share a product among threads round differently; more than this is a different answer.
_RELATIVE_TOLERANCE: Final = 1e-3
_ABSOLUTE_TOLERANCE: Final = 1e-4

Run = Callable[[], Sequence[Array]]


@dataclass(frozen=True)
class Layout:
    """One way to use the machine: a number of sessions, and of threads for each."""

    sessions: int
    threads: int

    def __str__(self) -> str:
        sessions, threads = "s" * (self.sessions > 1), "s" * (self.threads > 1)
        return f"{self.sessions} session{sessions} × {self.threads} thread{threads}"


@dataclass(frozen=True)
class LayoutResult:
    """The result of one layout; latencies are of single runs."""

    layout: Layout
    runs_per_s: float
    mean_ms: float
    p50_ms: float


def usual_layouts(cpus: int) -> tuple[Layout, ...]:
    """Return three layouts: one session on one thread, one on all CPUs, and one session per CPU."""
    return (Layout(1, 1),) if cpus == 1 else (Layout(1, 1), Layout(1, cpus), Layout(cpus, 1))


def measure(
    model: Path, feeds: Tensors, *, seconds: float = 3.0, layouts: Sequence[Layout] = ()
) -> list[LayoutResult]:
    """Run an ONNX file with ONNX Runtime for `seconds` in every layout; all must give the same answer."""
    results: list[LayoutResult] = []
    expected: Sequence[Array] = ()
    for layout in layouts or usual_layouts(available_cpus()):
        runs = [_opened(model, feeds, layout.threads) for _ in range(layout.sessions)]
        for run in runs:
            _warm_up(run)
        stop = time.perf_counter() + seconds
        with ThreadPoolExecutor(layout.sessions) as pool:
            done = list(pool.map(_run_until, runs, [stop] * layout.sessions))
        expected = expected or done[0][1]
        for _, answer in done:
            pairs = zip(answer, expected, strict=True)
            if not all(np.allclose(*pair, _RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE) for pair in pairs):
                first = results[0].layout if results else layout
                raise GourmetError(f"{layout} and {first} answer the same input differently: measure neither")
        results.append(summarise(layout, [moments for moments, _ in done]))
    return results


def summarise(layout: Layout, moments: Sequence[Array]) -> LayoutResult:
    """Summarise a layout by the start of each session and the end of each of its runs, in seconds."""
    took_ms = 1000 * np.concatenate([np.diff(times) for times in moments])
    wall_s = max(times[-1] for times in moments) - min(times[0] for times in moments)
    return LayoutResult(layout, took_ms.size / wall_s, float(took_ms.mean()), float(np.median(took_ms)))


def _warm_up(run: Run) -> None:
    """Run a few times: the first runs allocate."""
    for _ in range(_WARM_UP_RUNS):
        run()


def _run_until(run: Run, stop: float) -> tuple[Array, Sequence[Array]]:
    """Return the start and end of each run, and the last answer."""
    moments, answer = [time.perf_counter()], run()
    moments.append(time.perf_counter())
    while moments[-1] < stop:
        answer = run()
        moments.append(time.perf_counter())
    return np.array(moments), answer


def _opened(model: Path, feeds: Tensors, threads: int) -> Run:
    """Open an ONNX file on a number of threads, and return its run."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised
    try:
        session: Any = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # protobuf and ONNX Runtime have their own
        raise GourmetError(f"{model} cannot be run without a server: {exc}") from exc
    return lambda: session.run(None, feeds)
