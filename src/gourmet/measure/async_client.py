"""A point measured by our own client: rates, the web app, and every answer of the measurement checked."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from contextlib import nullcontext
from typing import Final

from gourmet.measure import generator, server_probe, stats, validity
from gourmet.measure.generator import Load, OnTime, Traffic
from gourmet.measure.results import Evidence, Point
from gourmet.measure.server_probe import ServerProbe
from gourmet.measure.task import Task, wire_for
from gourmet.measure.transports import in_shared_memory, requests
from gourmet.serving.statistics import booked, statistics_now

# The web app's own readiness question is counted by Triton too.
_OTHERS_BEHIND_THE_APP: Final = 0.02
_SEED: Final = 1


def measure(task: Task) -> Point:
    """The point that our client measures; raises Untrusted."""
    demand, effort = task.demand, task.effort
    probe = ServerProbe(task.target.url, task.target.app_url, demand)
    traffic, checks = checked_traffic(task, effort.warm_up_s, effort.measure_s, probe, task.on_time)
    stretch = traffic.began, traffic.ended
    due, sent, done = traffic.arrays()
    # Open: the requests that fell due while we looked, however long they took.
    ours = traffic.holds(done if demand.arrivals == "closed" else due)
    checks = (*checks, validity.generator_had_time(demand, traffic.client_cores))
    if not ours.any():
        raise validity.Disturbed(
            f"{demand}: no request was answered in {effort.measure_s:g} s: use a longer --window"
        )
    took = stats.latency(1000 * (done - due)[ours])
    windows = stats.windows(due, done, *stretch, effort.windows)
    rates = [window.requests_per_s for window in windows]
    natural = generator.expected_deviation(
        statistics.fmean(rates) * effort.window_s, demand.arrivals == "poisson"
    )
    under_way = stats.in_flight(due, done, *stretch)
    if demand.arrivals == "closed":
        # Rate × latency, with the requests that the measurement cuts through counted by the part inside.
        checks = (*checks, validity.littles_law(demand, demand.level, under_way))
    else:
        owed, seconds = int(ours.sum()), traffic.ended - traffic.began
        lag_ms = float(1000 * (sent - due)[ours].mean())
        counts = {"sent": int(traffic.holds(sent).sum()), "due": owed}
        checks = (
            *checks,
            validity.generator_was_punctual(demand, **counts, lag_ms=lag_ms, mean_ms=took.mean),
            validity.server_kept_up(
                demand, answered=int(traffic.holds(done).sum()), due=owed, seconds=seconds
            ),
            validity.littles_law(demand, under_way, owed / seconds * took.mean / 1000),
        )
    steady = validity.steady(demand, windows, stats.unsteadiness(rates), effort.steadiness + natural)
    return Point(
        arm="",
        demand=demand,
        client="gourmet",
        rows_per_s=stats.interval([demand.batch * rate for rate in rates]),
        latency_ms=took,
        split_ms=server_probe.split(probe.counted, took.mean),
        batches=server_probe.batches(probe.counted),
        windows=windows,
        requests=int(ours.sum()),
        errors=dict(traffic.errors),
        usage=probe.usage(traffic.client_cores),
        checks=(*checks, steady),
        config=task.config,
        stream=stats.stream(due, traffic.pieces, ours, stretch, effort.windows),
    )


def checked_traffic(
    task: Task,
    warm_up_s: float,
    measure_s: float,
    probe: ServerProbe,
    on_time: OnTime = lambda _: None,
) -> tuple[Traffic, tuple[Evidence, ...]]:
    """Load from our client, every answer checked and every row accounted for."""
    workload, demand, target = task.workload, task.demand, task.target
    rows = workload.rows
    before = statistics_now(target.url, demand.model)
    shared = in_shared_memory(target.url, rows, demand.batch) if demand.shared_memory else nullcontext()
    with shared as regions:
        wire = wire_for(target, demand, rows, regions)
        asked = requests(wire, len(rows), demand.batch, _SEED)
        traffic = Load(
            wire,
            itertools.cycle(asked),
            demand,
            lambda request, reply: workload.answers.check(wire, request, reply),
            warm_up_s=warm_up_s,
            measure_s=measure_s,
            mark=lambda: asyncio.to_thread(probe.look),
            seed=_SEED,
            on_time=on_time,
        ).run()
    answered = len(traffic.times)
    errors = validity.few_errors(traffic.errors, answered, task.effort.errors_allowed)
    counted = booked(target.url, demand.model, before, lambda counts: counts.rows >= traffic.rows).rows
    failed = demand.batch * sum(traffic.errors.values())
    others = _OTHERS_BEHIND_THE_APP if demand.through == "app" else 0.0
    accounted = validity.rows_counted(counted, traffic.rows, failed=failed, others_allowed=others)
    answers = Evidence("answers", f"{answered} of {answered} right", f"as {workload.answers.source}")
    return traffic, (answers, errors, accounted)
