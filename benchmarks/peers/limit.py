"""The limit: the same photos decoded alike and run through the same ONNX file, without any server."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
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
from harness.load import Asker, BenchLoad, BenchWindow, CpuUsed, closed_loop
from peers.expected import TOLERANCE, Model, answering

_STARTS_WITHIN_S: Final = 120.0


def measure(
    load: BenchLoad, model: Model, photos: Sequence[bytes], right: Floats, options: MeasureOptions
) -> BenchWindow:
    """The fastest layout that uses all cores; raise WrongAnswers for a single wrong answer."""
    layouts = [each for each in usual_layouts(available_cpus()) if each.sessions * each.threads > 1]
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
    """A process for each session: threads of one share the interpreter's lock, and answered a tenth less."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(layout.sessions)
    with ProcessPoolExecutor(
        layout.sessions,
        mp_context=context,
        initializer=_open,
        initargs=(model, photos, right, layout.threads, together),
    ) as pool:
        before, began = CpuUsed.now(), time.perf_counter()
        working = [pool.submit(_work, load, options) for _ in range(layout.sessions)]
        windows = [each.result() for each in working]
        foreign_cores = CpuUsed.now().foreign_since(before) / (time.perf_counter() - began)
    first = windows[0]
    return replace(
        first,
        latencies_ms=tuple(took_ms for window in windows for took_ms in window.latencies_ms),
        foreign_cores=foreign_cores,
        cpu_ms={"process": float(np.mean([window.cpu_ms["process"] for window in windows]))},
        memory_mib={},
        client_cores=0.0,
    )


_asker: list[Asker] = []


def _open(model: Model, photos: Sequence[bytes], right: Floats, threads: int, together: Any) -> None:
    """In a process of its own, which begins when all others can."""
    answer = answering(model, threads=threads)

    def ask(number: int) -> int:
        photo = number % len(photos)
        probabilities = answer(contract.SYSTEM.pixels(photos[photo]))
        if not float(np.abs(probabilities - right[photo]).max()) <= TOLERANCE:
            raise WrongAnswers(f"{model.name} answers photo {photo} differently on {threads} threads")
        return 1

    ask(0)
    _asker.append(ask)
    together.wait(_STARTS_WITHIN_S)


def _work(load: BenchLoad, options: MeasureOptions) -> BenchWindow:
    return closed_loop(load, _asker, options, {"process": os.getpid()})
