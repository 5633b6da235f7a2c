"""Measure the limit: the same photos, decoding and ONNX file, without a server."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, Final

import numpy as np

from gourmet.measure.task import MeasureOptions
from gourmet.measure.validity import WrongAnswers
from gourmet.measure.without_server import Layout, usual_layouts
from gourmet.pictures.classifier import Floats
from gourmet.runtime.instances import available_cpus
from gourmet.systems.food11 import contract
from harness.windows import BenchLoad, BenchWindow, CpuUsed
from peers.expected import TOLERANCE, Model, answering

_STARTS_WITHIN_S: Final = 120.0


def measure(
    load: BenchLoad, model: Model, photos: Sequence[bytes], right: Floats, options: MeasureOptions
) -> BenchWindow:
    """Measure the fastest layout that uses all cores; raise WrongAnswers for a single wrong answer."""
    layouts = [layout for layout in usual_layouts(available_cpus()) if layout.sessions * layout.threads > 1]
    windows = {
        layout: _of_layout(load, model, photos, right, layout, options)
        for layout in layouts or usual_layouts(1)
    }
    rates = ", ".join(f"{layout}: {window.per_s:.0f}/s" for layout, window in windows.items())
    return replace(max(windows.values(), key=lambda window: window.per_s), note=f"best of {rates}")


def _of_layout(
    load: BenchLoad,
    model: Model,
    photos: Sequence[bytes],
    right: Floats,
    layout: Layout,
    options: MeasureOptions,
) -> BenchWindow:
    """Measure a layout with a process for each session: threads share the GIL and were a tenth slower."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(layout.sessions)
    with ProcessPoolExecutor(
        layout.sessions,
        mp_context=context,
        initializer=_open,
        initargs=(model, photos, right, layout.threads, together),
    ) as pool:
        before, began = CpuUsed.now(), time.perf_counter()
        working = [pool.submit(_work, options.warm_up_s, options.measure_s) for _ in range(layout.sessions)]
        results = [future.result() for future in working]
        foreign_cores = CpuUsed.now().foreign_since(before) / (time.perf_counter() - began)
    latencies_ms = tuple(took_ms for took, _, _ in results for took_ms in took)
    seconds, cpu_s = (
        sum(figures) for figures in zip(*((wall, cpu) for _, wall, cpu in results), strict=True)
    )
    cpu_ms = {"process": 1000 * cpu_s / max(1, len(latencies_ms))}
    return BenchWindow(load, seconds / len(results), latencies_ms, foreign_cores, cpu_ms=cpu_ms)


_classify: list[Callable[[int], None]] = []


def _open(model: Model, photos: Sequence[bytes], right: Floats, threads: int, together: Any) -> None:
    """Prepare a process, and wait until all others are ready."""
    answer = answering(model, threads=threads)

    def classify(number: int) -> None:
        photo = number % len(photos)
        probabilities = answer(contract.SYSTEM.pixels(photos[photo]))
        if not float(np.abs(probabilities - right[photo]).max()) <= TOLERANCE:
            raise WrongAnswers(f"{model.name} answers photo {photo} differently on {threads} threads")

    classify(0)
    _classify.append(classify)
    together.wait(_STARTS_WITHIN_S)


def _work(warm_up_s: float, measure_s: float) -> tuple[list[float], float, float]:
    """Classify photos in turn; return the milliseconds of each, and the seconds and CPU seconds of all."""
    numbers, latencies_ms = itertools.count(), list[float]()
    ends = time.perf_counter() + warm_up_s
    while time.perf_counter() < ends:
        _classify[0](next(numbers))
    busy_s, began = time.process_time(), time.perf_counter()
    while (sent := time.perf_counter()) < began + measure_s:
        _classify[0](next(numbers))
        latencies_ms.append(1000 * (time.perf_counter() - sent))
    return latencies_ms, time.perf_counter() - began, time.process_time() - busy_s
