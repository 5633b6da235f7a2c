"""A point measured by our own client: rates, the web app, and every answer of the measurement checked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from gourmet.bench import figures, generator, triton_counts, trust
from gourmet.bench.generator import Pace, Traffic
from gourmet.bench.results import Check, Demand, Point
from gourmet.bench.rows import Rows
from gourmet.bench.task import OnTime, Target, Task, Watch, wire_for
from gourmet.bench.triton_counts import Counts
from gourmet.bench.wire import in_shared_memory, requests

# The web app's own readiness question is counted by Triton too.
_OTHERS_BEHIND_THE_APP: Final = 0.02
# Triton books a request shortly after it answered it.
_BOOKED_WITHIN_S: Final = 3.0
_SEED: Final = 1


def measure(task: Task) -> Point:
    """The point that our client measures; raises Untrusted."""
    demand, effort = task.demand, task.effort
    watch = Watch(task.target, demand)
    pace = Pace(effort.warm_up_s, effort.measure_s)
    traffic, checks = checked_traffic(task, pace, watch, task.on_time)
    due, sent, done = traffic.arrays()
    began, ended = traffic.began, traffic.ended
    seen = figures.windows(due, done, began, ended, effort.windows)
    rate = sum(window.requests_per_s for window in seen) / len(seen)
    natural = generator.expected_deviation(rate * effort.window_s, demand.arrivals == "poisson")
    off = figures.unsteadiness([window.requests_per_s for window in seen])
    closed = demand.arrivals == "closed"
    # Open: the requests that fell due while we looked, however long they took.
    inside = (done >= began) & (done < ended) if closed else (due >= began) & (due < ended)
    checks = (*checks, trust.generator_had_time(demand, traffic.client_cores))
    if not inside.any():
        raise trust.Unsteady(
            f"{demand}: no request was answered in {effort.measure_s:g} s: use a longer --window"
        )
    took = figures.latency(1000 * (done - due)[inside])
    if not closed:
        on_time_ = trust.generator_was_punctual(
            demand,
            sent=int(((sent >= began) & (sent < ended)).sum()),
            due=int(inside.sum()),
            lag_ms=float(1000 * (sent - due)[inside].mean()),
            mean_ms=took.mean,
        )
        answered = int(((done >= began) & (done < ended)).sum())
        kept_up = trust.server_kept_up(
            demand, answered=answered, due=int(inside.sum()), seconds=ended - began
        )
        checks = (*checks, on_time_, kept_up)
    checks = (*checks, trust.steady(demand, seen, off, effort.steadiness + natural))
    under_way = figures.in_flight(due, done, began, ended)
    if closed:
        # Rate × latency, with the requests that the measurement cuts through counted by the part inside.
        law = trust.littles_law(demand, demand.level, under_way)
    else:
        law = trust.littles_law(demand, under_way, float(inside.sum()) / (ended - began) * took.mean / 1000)
    checks = (*checks, law)
    return Point(
        arm="",
        demand=demand,
        client="gourmet",
        rows_per_s=figures.interval([demand.batch * window.requests_per_s for window in seen]),
        latency_ms=took,
        split_ms=watch.counted.split(took.mean),
        batches=watch.counted.batches(),
        windows=seen,
        requests=int(inside.sum()),
        errors=dict(traffic.errors),
        usage=watch.usage(traffic.client_cores),
        checks=checks,
        config=task.config,
    )


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
    counted = _booked(target, demand, before, traffic.rows).rows
    failed = demand.batch * sum(traffic.errors.values())
    others = _OTHERS_BEHIND_THE_APP if demand.through == "app" else 0.0
    rows = trust.rows_counted(counted, traffic.rows, failed=failed, others_allowed=others)
    answers = Check(
        "answers", f"{len(traffic.done)} of {len(traffic.done)} right", f"as {subject.answers.source}"
    )
    return traffic, (answers, errors, rows)


def _booked(target: Target, demand: Demand, before: Counts, rows: int) -> Counts:
    deadline = time.monotonic() + _BOOKED_WITHIN_S
    while True:
        counted = triton_counts.look(target.url, demand.model).since(before)
        if counted.rows >= rows or time.monotonic() > deadline:
            return counted
        time.sleep(0.05)


@contextlib.contextmanager
def _regions(target: Target, demand: Demand, rows: Rows) -> Iterator[Any]:
    if not demand.shared_memory:
        yield None
        return
    with in_shared_memory(target.url, rows, demand.batch) as regions:
        yield regions
