"""Measurements of a lab: arms in rounds, each with its baseline, and the load by other programs."""

from __future__ import annotations

import base64
import csv
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.bench import report, stats, sweep
from gourmet.bench.inputs import DataSource, rows_for
from gourmet.bench.results import Estimate, LoadSpec, Point, Through
from gourmet.bench.server_probe import CpuMeter, listener
from gourmet.bench.sweep import restored
from gourmet.bench.workload import Addresses, MeasureOptions, Workload, prepare
from gourmet.errors import GourmetError
from gourmet.lab import exercises
from gourmet.reports import chart
from gourmet.reports.table import columns
from gourmet.repository.config_change import Change, changed
from gourmet.served.instances import available_cpus
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.stack.run_file import stack_at
from gourmet.systems import registry
from gourmet.triton_client.model_config import summary

# Seconds of a window, of which a measurement has three.
SECONDS_ENV: Final = "GOURMET_LAB_SECONDS"
_WINDOWS: Final = 3
_ROWS: Final = 32
_SEED: Final = 5
# The share of all cores that other programs may use before a measurement counts as disturbed.
_OTHERS_ALLOWED: Final = 0.1


@dataclass(frozen=True)
class Arm:
    load: LoadSpec
    change: Change
    stepped: str = ""  # the system whose answers the client computes a step a request


def arm(
    model: str, clients: int = 1, rows: int = 1, through: Through = "triton", stepped: str = "", **change: Any
) -> Arm:
    """Return a load on a model with a changed config, as by `gourmet config`: instances=2, delay_us=100."""
    return Arm(LoadSpec(model, clients, batch=rows, through=through), Change(**change), stepped)


@dataclass(frozen=True)
class Figure:
    """A figure with its interval, and the reason if a disturbance makes it undecided."""

    estimate: Estimate
    disturbed: str = ""


@dataclass
class Run:
    """The rounds of an arm, or the milliseconds of calls."""

    name: str
    points: list[Point] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)  # of a request on average, by window
    disturbed: str = ""

    @property
    def rates(self) -> list[float]:
        """Rows per second, by window."""
        return [rate for point in self.points for rate in point.rates]

    @property
    def point(self) -> Point:
        if not self.points:
            raise GourmetError(f"{self.name} was not measured: {self.disturbed}")
        return replace(stats.merge(self.points), rows_per_s=stats.interval(self.rates))

    @property
    def others(self) -> float | None:
        """Cores that other programs used, in the worst round."""
        known = [point.usage.others_cores for point in self.points]
        return max((cores for cores in known if cores is not None), default=None)

    def row(self) -> tuple[str, ...]:
        if not self.points:
            return (self.name, f"not measured: {self.disturbed}", *[""] * 7)
        point = self.point
        server = f"{point.usage.server_cores:.1f}" if point.usage.server_cores is not None else "?"
        others = f"{self.others:.1f}" if self.others is not None else "?"
        return (
            *(self.name, f"{point.rows_per_s:.0f}", f"{point.latency_ms.p50:.1f}"),
            *(f"{point.latency_ms.p99:.1f}", f"{point.split_ms.queue:.1f}", f"{point.split_ms.infer:.1f}"),
            *(server, f"{point.usage.client_cores:.1f}", others),
        )


class Runs(dict[str, Run]):
    """Runs by the name of their arm, which is an attribute too; shown as a table and charts."""

    _HEADINGS = ("", "rows/s", "p50 ms", "p99 ms", "queue ms", "infer ms", "Triton", "client", "others")

    def __getattr__(self, name: str) -> Run:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        rows = [self._HEADINGS, *(run.row() for run in self.values())]
        return f"{columns(rows)}\n(the last three: cores used)"

    def drawing(self) -> chart.Drawing | None:
        points = [run.point for run in self.values() if run.points]
        return report.throughput("measured", points) if points else None

    def _repr_html_(self) -> str:
        return f"<pre>{self!r}</pre>{as_image(self.drawing())}"


def measure(rounds: int = 2, **arms: Arm) -> Runs:
    """Measure the arms in rounds, one after another, and check every answer; then restore the configs."""
    exercise = exercises.current()
    exercise.check_predicted()
    runs = Runs({name: Run(name) for name in arms})
    with ThreadPoolExecutor(1) as pool:  # a notebook's own thread has an event loop already
        results = pool.submit(_measure, exercise.addresses, rounds, arms).result()
    for points, refused in results:
        for point in points:
            run = runs[point.arm]
            run.points.append(point)
            run.latencies_ms += [window.mean_ms for window in point.windows]
            run.disturbed = run.disturbed or _too_much(point.usage.others_cores)
        for rejection in refused:
            runs[rejection.name].disturbed = rejection.reason
    exercise.keep_runs(repr(runs), runs.drawing() or "")
    return runs


def _measure(target: Addresses, rounds: int, arms: dict[str, Arm]) -> list[sweep.Measured]:
    seconds = float(os.environ.get(SECONDS_ENV, "1"))
    options = MeasureOptions(seconds, _WINDOWS, min(1.0, seconds), attempts=2, steadiness=1e9)
    workloads: dict[tuple[str, str], Workload] = {}

    with restored(target, dict.fromkeys(arm.load.model for arm in arms.values())) as configs:

        def measure_arm(name: str) -> sweep.Measured:
            load, stepped = arms[name].load, arms[name].stepped
            config = changed(configs.usual[load.model], arms[name].change)
            print(summary(config))  # noqa: T201
            configs.serve(load.model, config)
            route = load.model, load.through
            if route not in workloads:
                data = DataSource(_ROWS, _SEED)
                workloads[route] = prepare(load.model, target, data, through=load.through, stepped=stepped)
            points, refused = sweep.run_sweep(workloads[route], [load], target, options, name)
            return points, [replace(rejection, name=name) for rejection in refused]

        measures = {name: partial(measure_arm, name) for name in arms}
        return sweep.in_turns(measures, rounds, lambda _share, words: print(words, end=": "))  # noqa: T201


def _too_much(others_cores: float | None) -> str:
    cpus = available_cpus()
    if others_cores is None or others_cores <= _OTHERS_ALLOWED * cpus:
        return ""
    return f"other programs used {others_cores:.1f} of {cpus} cores"


def in_turns(count: int, *calls: Callable[[], object]) -> list[Run]:
    """Call the functions in turn, `count` times; return the milliseconds of each, or its own figures."""
    exercise = exercises.current()
    exercise.check_predicted()
    took: list[list[float]] = [[] for _ in calls]
    stack = stack_at(exercise.url)
    meter = CpuMeter({"server": stack.pid if stack else listener(exercise.url)})
    meter.record()
    for _ in range(count):
        for figures, call in zip(took, calls, strict=True):
            began = time.perf_counter()
            figure = call()
            took_ms = 1000 * (time.perf_counter() - began)
            figures.append(figure if isinstance(figure, float) else took_ms)
    meter.record()
    others = meter.others_cores if meter.groups["server"] else None
    return [Run("", latencies_ms=figures, disturbed=_too_much(others)) for figures in took]


def times(ours: Run, theirs: Run) -> Figure:
    """Return the ratio of our rows per second to theirs."""
    return _of(lambda: stats.ratio(ours.rates, theirs.rates), ours, theirs)


def times_as_long(ours: Run, theirs: Run) -> Figure:
    """Return the ratio of our mean latency to theirs."""
    return _of(lambda: stats.ratio(ours.latencies_ms, theirs.latencies_ms), ours, theirs)


def times_as_long_in_triton(ours: Run, theirs: Run) -> Figure:
    """Return the ratio of our requests' mean time in Triton to theirs, by Triton's count."""
    mine, other = ([point.split_ms.server for point in run.points] for run in (ours, theirs))
    return _of(lambda: stats.ratio(mine, other), ours, theirs)


def average(run: Run) -> Figure:
    """Return the mean latency of a request, or the mean figure of `in_turns`."""
    return _of(lambda: stats.interval(run.latencies_ms), run)


def infer_share(run: Run) -> Figure:
    """Return the share of a request's time in the model, in percent, by Triton's count."""
    shares = [100 * point.split_ms.infer / point.latency_ms.mean for point in run.points]
    return _of(lambda: stats.interval(shares), run)


def rows_per_execution(run: Run) -> Figure:
    """Return the mean rows of an execution, by Triton's count."""
    return _of(lambda: stats.interval([point.executed_rows for point in run.points]), run)


def in_flight(run: Run) -> Figure:
    """Return throughput × latency, the number of requests under way (Little's law)."""
    windows = [window for point in run.points for window in point.windows]
    return _of(lambda: stats.interval([w.requests_per_s * w.mean_ms / 1000 for w in windows]), run)


def _of(estimate: Any, *runs: Run) -> Figure:
    if missing := [run for run in runs if not run.latencies_ms]:
        return Figure(Estimate(float("nan")), missing[0].disturbed)
    return Figure(estimate(), next((run.disturbed for run in runs if run.disturbed), ""))


def agreement(ours: str, theirs: str, count: int = 64) -> Figure:
    """Return the share of generated photos with the same label from both models, in percent."""
    exercise = exercises.current()
    exercise.check_predicted()
    labels = []
    with connect(exercise.url, LOADS_WITHIN_S) as triton:
        for model in (ours, theirs):
            info = triton.describe(model)
            rows, system = rows_for(info, DataSource(count, _SEED)), registry.classification(info.system)
            requests = [{spec.name: rows.tensor(spec, [row]) for spec in rows.inputs} for row in range(count)]
            answers = [triton.infer(model, tensors).outputs for tensors in requests]
            labels.append([int(np.argmax(system.probabilities(outputs, info))) for outputs in answers])
    return Figure(Estimate(100 * statistics.fmean(a == b for a, b in zip(*labels, strict=True))))


def reported(path: str) -> float:
    """Return the rows per second in a report that perf_analyzer wrote with -f."""
    if not Path(path).exists():
        raise GourmetError(f"no {path}: perf_analyzer failed, see its output above; run the cell again")
    with Path(path).open() as file:
        return float(next(csv.DictReader(file))["Inferences/Second"])


def as_image(drawing: str | None) -> str:
    """Return the SVG as an image: Jupyter shows no other SVG of a notebook that it does not trust yet."""
    data = base64.b64encode((drawing or "").encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}">' if drawing else ""
