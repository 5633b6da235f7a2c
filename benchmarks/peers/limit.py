"""The limit: the same photos decoded alike and run through the same ONNX file, without any server."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from gourmet.measure.validity import WrongAnswers
from gourmet.measure.without_server import Layout
from gourmet.pictures.classifier import Floats
from gourmet.systems.food11 import contract
from peers import processes
from peers.expected import DATATYPES, TOLERANCE, Model, open_session


@dataclass(frozen=True)
class Run:
    """What one way to use the cores came to."""

    layout: Layout
    latencies_s: tuple[float, ...]
    photos_per_s: float
    cpu_s_per_photo: float
    foreign_cores: float


@dataclass(frozen=True)
class _Worked:
    began: float
    ended: float
    latencies_s: list[float]
    cpu_s: float
    worst: float


def measure(
    model: Model, photos: Sequence[bytes], expected: Floats, layout: Layout, window_s: float, bench: int
) -> Run:
    """Decode and run as fast as `layout` can for `window_s`; raise WrongAnswers for a single wrong one."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(layout.sessions, mp_context=context) as pool:
        together = manager.Barrier(layout.sessions + 1)
        futures = [
            pool.submit(_work, model, photos, expected, layout.threads, window_s, first, together)
            for first in range(layout.sessions)
        ]
        try:
            together.wait(timeout=120)
        except Exception:
            for future in futures:
                future.result(timeout=10)  # raises what kept it from starting
            raise
        before, began = processes.spent({}, bench), time.perf_counter()
        worked = [future.result() for future in futures]
        after, took = processes.spent({}, bench), time.perf_counter() - began
    if any(each.worst > TOLERANCE for each in worked):
        raise WrongAnswers(f"{model.name} answers differently with {layout}: measure neither")
    latencies = [latency for each in worked for latency in each.latencies_s]
    wall_s = max(each.ended for each in worked) - min(each.began for each in worked)
    foreign = (after.machine - before.machine) - (after.bench - before.bench)
    return Run(
        layout,
        tuple(latencies),
        len(latencies) / wall_s,
        sum(each.cpu_s for each in worked) / len(latencies),
        max(0.0, foreign / took),
    )


def _work(
    model: Model,
    photos: Sequence[bytes],
    expected: Floats,
    threads: int,
    window_s: float,
    first: int,
    together: Any,
) -> _Worked:
    session = open_session(model, threads)
    given, outputs = session.get_inputs()[0], [output.name for output in session.get_outputs()]
    datatype = DATATYPES[given.type]

    def once(at: int) -> float:
        photo = at % len(photos)
        answers = session.run(None, {given.name: contract.SYSTEM.encode(photos[photo], datatype)})
        row = contract.SYSTEM.read(dict(zip(outputs, answers, strict=True)), model.temperature)[0]
        return float(np.abs(row - expected[photo]).max())

    worst = max(once(at) for at in range(3))
    together.wait(timeout=120)
    latencies: list[float] = []
    at, cpu = first, time.process_time()
    began = now = time.perf_counter()
    while now - began < window_s:
        worst = max(worst, once(at))
        at += 1
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    return _Worked(began, now, latencies, time.process_time() - cpu, worst)
