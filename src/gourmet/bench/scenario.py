"""Named scenarios: a row of configs on a running server, each under its loads, and what they show.

Nothing is rebuilt or restarted: a config goes to the server through the load API, and what served
before is put back at the end, whatever happens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gourmet.bench import figures, live_config, sweep
from gourmet.bench.results import (
    BatchSize,
    Bench,
    Demand,
    Estimate,
    Finding,
    Latency,
    Point,
    Refusal,
    Split,
    Window,
)
from gourmet.bench.sweep import Data, OnStep
from gourmet.bench.task import Effort, Subject, Target
from gourmet.config_change import Change, Config, changed


@dataclass(frozen=True)
class Arm:
    """A config of a model and what is asked of it; `change` is made to the config without batching."""

    name: str
    change: Change
    demands: tuple[Demand, ...]
    # Written into the config even where there is nothing to batch, which Change refuses.
    delay_us: int | None = None

    @property
    def model(self) -> str:
        return self.demands[0].model


@dataclass(frozen=True)
class Scenario:
    """Arms, and how to read them."""

    name: str
    title: str
    about: str
    arms: tuple[Arm, ...]
    read: Callable[[Points], list[Finding]]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm.model for arm in self.arms))


class Points:
    """The points of a scenario by arm and demand; one that was refused is missing."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = {(point.arm, point.demand.level, point.demand.batch): point for point in points}

    def get(self, arm: str, level: float, batch: int = 1) -> Point | None:
        return self._points.get((arm, level, batch))

    def of(self, *arms: str, level: float, batch: int = 1) -> list[Point]:
        """Those of the arms that were measured at this load."""
        found = (self.get(arm, level, batch) for arm in arms)
        return [point for point in found if point is not None]


def run(
    scenario: Scenario,
    target: Target,
    effort: Effort,
    data: Data,
    *,
    turns: int = 1,
    command: str = "",
    on_step: OnStep = lambda _share, _words: None,
) -> Bench:
    """Measure every arm `turns` times, one after another, and say what was found."""
    measured: dict[str, list[Point]] = {}
    refused: list[Refusal] = []
    on_step(0.0, "asking every row alone")
    subjects = {model: sweep.prepare(model, target, data) for model in scenario.models}
    steps = [(turn, arm) for turn in range(turns) for arm in scenario.arms]
    with live_config.restored(target, scenario.models) as running:
        for place, (turn, arm) in enumerate(steps):

            def on_arm(share: float, words: str, place: int = place, turn: int = turn) -> None:
                said = f"turn {turn + 1} of {turns}: {words}" if turns > 1 else words
                on_step((place + share) / len(steps), said)

            on_arm(0.0, f"loading {arm.name}")
            live_config.load(target, arm.model, _config(running[arm.model], arm))
            points, not_these = sweep.run(subjects[arm.model], arm.demands, target, effort, arm.name, on_arm)
            refused += not_these
            for point in points:
                measured.setdefault(point.name, []).append(point)
    merged = [merge(points) for points in measured.values()]
    rows = next(iter(subjects.values())).rows
    found = sweep.bench(scenario.title, command, rows, merged, refused, about=scenario.about)
    return replace(found, data=_data(subjects), findings=tuple(scenario.read(Points(merged))))


def _data(subjects: Mapping[str, Subject]) -> str:
    said = {model: subject.rows.about for model, subject in subjects.items()}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{model}: {about}" for model, about in said.items())


def _config(running: Config, arm: Arm) -> Config:
    """The arm's config: what serves now, without batching, with the arm's change."""
    config = changed(changed(running, Change(dynamic_batching=False)), arm.change)
    if arm.delay_us is not None:
        config["dynamic_batching"] = {"max_queue_delay_microseconds": arm.delay_us}
    return config


def merge(turns: Sequence[Point]) -> Point:
    """The turns of a point as one: means over the turns, whose spread gives the interval.

    A percentile of all turns together cannot be had from theirs; theirs are averaged.
    """
    if len(turns) == 1:
        return turns[0]
    executions: dict[int, list[BatchSize]] = {}
    for size in (size for point in turns for size in point.batches):
        executions.setdefault(size.rows, []).append(size)
    took = {
        name: statistics.fmean(getattr(p.latency_ms, name) for p in turns)
        for name in vars(turns[0].latency_ms)
    }
    split = {
        name: statistics.fmean(getattr(p.split_ms, name) for p in turns) for name in vars(turns[0].split_ms)
    }
    rates = [point.rows_per_s.value for point in turns]
    return replace(
        turns[0],
        rows_per_s=figures.interval(rates),
        latency_ms=Latency(**took),
        split_ms=Split(**split),
        batches=tuple(_sum(rows, sizes) for rows, sizes in sorted(executions.items())),
        windows=tuple(
            Window(p.rows_per_s.value / p.demand.batch, p.latency_ms.mean, p.latency_ms.p95) for p in turns
        ),
        requests=sum(point.requests for point in turns),
        checks=tuple(check for point in turns for check in point.checks),
        attempts=max(point.attempts for point in turns),
        turns=len(turns),
    )


def _sum(rows: int, sizes: Sequence[BatchSize]) -> BatchSize:
    count = sum(size.executions for size in sizes)
    return BatchSize(rows, count, sum(size.infer_ms * size.executions for size in sizes) / count)


def ratio(ours: Point, theirs: Point) -> Estimate:
    """How many times the throughput of one point that of another is."""
    return figures.ratio(
        [window.requests_per_s * ours.demand.batch for window in ours.windows],
        [window.requests_per_s * theirs.demand.batch for window in theirs.windows],
    )


def finding(seen: bool, claim: str, numbers: str) -> Finding:
    """What was expected, with the figures that show it or that do not."""
    return Finding(
        f"{claim}: {numbers}." if seen else f"Not reproduced here: {claim}; measured {numbers}.", seen
    )


def not_measured(claim: str) -> Finding:
    return Finding(f"Not measured: {claim}; a point that it needs was refused or left out.", None)


def over(points: Sequence[Point], show: Callable[[Point], str], label: Callable[[Point], str]) -> str:
    """A figure of several points in a row: `0.8 (c=1), 12.1 (c=8)`."""
    return ", ".join(f"{show(point)} ({label(point)})" for point in points)
