"""A point measured by our own client: rates, the web app, and every answer of the measurement checked."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.bench import figures, generator, triton_counts, trust
from gourmet.bench.generator import Pace, Traffic
from gourmet.bench.results import Check, Demand, Latency, Point
from gourmet.bench.rows import Rows
from gourmet.bench.task import OnTime, Target, Task, Watch, wire_for
from gourmet.bench.wire import in_shared_memory, requests

# The web app's own readiness question is counted by Triton too.
_OTHERS_BEHIND_THE_APP: Final = 0.02
_SEED: Final = 1


def measure(task: Task) -> Point:
    """The point that our client measures; raises Untrusted."""
    demand, effort = task.demand, task.effort
    watch = Watch(task.target, demand)
    traffic, checks = checked_traffic(task, Pace(effort.warm_up_s, effort.measure_s), watch, task.on_time)
    seen = _Seen.of(traffic, demand)
    windows = figures.windows(seen.due, seen.done, seen.began, seen.ended, effort.windows)
    checks = (*checks, trust.generator_had_time(demand, traffic.client_cores))
    if not seen.ours.any():
        raise trust.Unsteady(
            f"{demand}: no request was answered in {effort.measure_s:g} s: use a longer --window"
        )
    took = figures.latency(1000 * (seen.done - seen.due)[seen.ours])
    rates = [window.requests_per_s for window in windows]
    natural = generator.expected_deviation(
        statistics.fmean(rates) * effort.window_s, demand.arrivals == "poisson"
    )
    steady = trust.steady(demand, windows, figures.unsteadiness(rates), effort.steadiness + natural)
    return Point(
        arm="",
        demand=demand,
        client="gourmet",
        rows_per_s=figures.interval([demand.batch * rate for rate in rates]),
        latency_ms=took,
        split_ms=watch.counted.split(took.mean),
        batches=watch.counted.batches(),
        windows=windows,
        requests=int(seen.ours.sum()),
        errors=dict(traffic.errors),
        usage=watch.usage(traffic.client_cores),
        checks=(*checks, *_of_the_loop(demand, seen, took), steady),
        config=task.config,
    )


@dataclass(frozen=True)
class _Seen:
    """The requests of a measurement; `ours` are those that it is about."""

    due: figures.Array
    sent: figures.Array
    done: figures.Array
    began: float
    ended: float
    ours: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, traffic: Traffic, demand: Demand) -> _Seen:
        due, sent, done = traffic.arrays()
        # Open: the requests that fell due while we looked, however long they took.
        when = done if demand.arrivals == "closed" else due
        ours = (when >= traffic.began) & (when < traffic.ended)
        return cls(due, sent, done, traffic.began, traffic.ended, ours)

    def count(self, times: figures.Array) -> int:
        return int(((times >= self.began) & (times < self.ended)).sum())


def _of_the_loop(demand: Demand, seen: _Seen, took: Latency) -> tuple[Check, ...]:
    """What must hold of a closed loop, or of an open one."""
    under_way = figures.in_flight(seen.due, seen.done, seen.began, seen.ended)
    if demand.arrivals == "closed":
        # Rate × latency, with the requests that the measurement cuts through counted by the part inside.
        return (trust.littles_law(demand, demand.level, under_way),)
    due, seconds = int(seen.ours.sum()), seen.ended - seen.began
    punctual = trust.generator_was_punctual(
        demand,
        sent=seen.count(seen.sent),
        due=due,
        lag_ms=float(1000 * (seen.sent - seen.due)[seen.ours].mean()),
        mean_ms=took.mean,
    )
    kept_up = trust.server_kept_up(demand, answered=seen.count(seen.done), due=due, seconds=seconds)
    return punctual, kept_up, trust.littles_law(demand, under_way, due / seconds * took.mean / 1000)


def checked_traffic(
    task: Task,
    pace: Pace,
    watch: Watch,
    on_time: OnTime = lambda _: None,
) -> tuple[Traffic, tuple[Check, ...]]:
    """Load from our client, every answer checked and every row accounted for."""
    subject, demand, target = task.subject, task.demand, task.target
    before = triton_counts.look(target.url, demand.model)
    with _regions(target, demand, subject.rows) as regions:
        wire = wire_for(target, demand, subject.rows, regions)
        asked = requests(wire, len(subject.rows), demand.batch, _SEED, shuffled=True)
        traffic = generator.run(
            wire,
            asked,
            demand,
            pace,
            lambda request, reply: subject.answers.check(wire, request, reply),
            mark=lambda: asyncio.to_thread(watch.look),
            seed=_SEED,
            on_time=on_time,
        )
    errors = trust.few_errors(traffic.errors, len(traffic.done), task.effort.errors_allowed)
    counted = triton_counts.booked(
        target.url, demand.model, before, lambda counts: counts.rows >= traffic.rows
    ).rows
    failed = demand.batch * sum(traffic.errors.values())
    others = _OTHERS_BEHIND_THE_APP if demand.through == "app" else 0.0
    rows = trust.rows_counted(counted, traffic.rows, failed=failed, others_allowed=others)
    answers = Check(
        "answers", f"{len(traffic.done)} of {len(traffic.done)} right", f"as {subject.answers.source}"
    )
    return traffic, (answers, errors, rows)


@contextlib.contextmanager
def _regions(target: Target, demand: Demand, rows: Rows) -> Iterator[Any]:
    if not demand.shared_memory:
        yield None
        return
    with in_shared_memory(target.url, rows, demand.batch) as regions:
        yield regions
