"""Measure a model under one load after another, and change its config meanwhile."""

from __future__ import annotations

import datetime
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from gourmet.client.errors import TritonUnreachable
from gourmet.client.model_config import Config
from gourmet.contracts import ModelInfo
from gourmet.errors import UsageError
from gourmet.measure import async_client, task, validity
from gourmet.measure.inputs import DataSource, first_steps, rows_for
from gourmet.measure.results import Bench, LoadSpec, Point, Rejection, Through
from gourmet.measure.task import Addresses, Answers, MeasureOptions, Workload, wire_for
from gourmet.measure.transports import Answer
from gourmet.reports import machine
from gourmet.runtime.signals import handled
from gourmet.serving.connect import LOADS_WITHIN_S, connect
from gourmet.systems import registry

OnStep = Callable[[float, str], None]

# A request that would wait longer, at the best rate so far, tells nothing but that it waits.
_LONGEST_WAIT_S: Final = 30.0
_LOAD_TRIES: Final = 5


def prepare(
    model: str, target: Addresses, data: DataSource, *, through: Through = "triton", stepped: str = ""
) -> Workload:
    """Make the rows for a served model, and get the answer to each of them alone.

    `stepped` is the system whose answers a model computes a step a request.
    """
    with connect(target.url) as triton:
        info = triton.describe(model)
    rows = first_steps(info, stepped, data) if stepped else rows_for(info, data)
    if through == "app" and not rows.pictures:
        raise UsageError(
            f"the web app takes photos, and there are none for {model}: its system is not one of pictures"
        )
    wire = wire_for(target, LoadSpec(model, through=through), rows)
    alone = task.ask_alone(wire, rows)
    if through == "app":
        _check_served_by(alone[0], rows.info, target)
    if data.reference is None:
        return Workload(model, rows, Answers(alone, rows.batched, "each row was answered alone"))
    source = f"{data.reference.name} answers without a server"
    right = Answers(task.of_onnx(data.reference, rows), rows.batched, source)
    for row, answer in enumerate(alone):
        right.check_row(row, answer, "a row asked alone")
    return Workload(model, rows, right)


def _check_served_by(answer: Answer, model: ModelInfo, target: Addresses) -> None:
    served = answer["model"].item().decode()
    if served == model.name:
        return
    with connect(target.url) as triton:
        system = triton.describe(served).system
    # One system's models answer at /predict: no variable makes it ask a model of another.
    variable = registry.load(system).model_variable if system == model.system else ""
    raise UsageError(
        f"POST /predict of the app at {target.app_url} asks {served} and not {model.name}: name that model"
        + (f", or start the app with {variable}={model.name}" if variable else "")
    )


def run(
    workload: Workload,
    loads: Iterable[LoadSpec],
    target: Addresses,
    options: MeasureOptions,
    arm: str = "",
    on_step: OnStep = lambda _share, _words: None,
) -> tuple[list[Point], list[Rejection]]:
    """Measure one load after another; reject each point that fails a check.

    Wrong answers and errors are not a matter of one point: they end the run.
    """
    planned = list(loads)
    points: list[Point] = []
    refused: list[Rejection] = []
    for number, load in enumerate(planned):
        name = f"{arm or load.model} {load}"
        on_step(number / len(planned), name)
        best = max((point.rows_per_s.value for point in points), default=math.inf)
        if load.arrivals == "closed" and load.level * load.batch / best > _LONGEST_WAIT_S:
            words = f"not measured: a request would wait for {load.level * load.batch / best:.0f} s"
            refused.append(Rejection(name, words))
            continue
        try:
            points.append(measure(workload, load, target, options, arm))
        except (validity.Disturbed, validity.ServerOverrun) as exc:
            refused.append(Rejection(name, f"{exc.in_short} ({exc})"))
    return points, refused


def measure(
    workload: Workload, load: LoadSpec, target: Addresses, options: MeasureOptions, arm: str = ""
) -> Point:
    """Measure a point that passes every check; raise Untrusted. Repeat a disturbed measurement."""
    task.check_possible(load, workload.rows)
    with connect(target.url) as triton:
        config = triton.config(load.model)
    for attempt in range(1, options.attempts + 1):
        try:
            point = async_client.measure(workload, load, target, options)
            return replace(point, arm=arm or load.model, attempts=attempt, config=config)
        except validity.Disturbed:
            if attempt == options.attempts:
                raise
    raise AssertionError("an attempt returns or raises")


def bench(
    title: str,
    command: str,
    data: str,
    points: Sequence[Point],
    refused: Sequence[Rejection] = (),
) -> Bench:
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Bench(title, command, when, machine.about(), data, tuple(points), tuple(refused))


@contextmanager
def restored(target: Addresses, models: Sequence[str]) -> Iterator[dict[str, Config]]:
    """Yield the current configs, and restore them afterwards, after Ctrl-C and SIGTERM too.

    The caller may replace an entry of the dictionary; that config is restored instead.
    """
    with connect(target.url) as triton:
        running = {model: triton.config(model) for model in models}
    try:
        yield running
    finally:
        # A second Ctrl-C would leave the server with whatever was being tried.
        with handled({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
            for model, config in running.items():
                load_config(target, model, config)


def load_config(target: Addresses, model: str, config: Mapping[str, Any]) -> None:
    # A server that starts many instances on few cores may be too busy to pick up at once.
    for left in reversed(range(_LOAD_TRIES)):
        try:
            with connect(target.url, LOADS_WITHIN_S) as triton:
                triton.load(model, config)
            return
        except TritonUnreachable:
            if not left:
                raise
