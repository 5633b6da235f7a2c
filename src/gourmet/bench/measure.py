"""One demand on one served model, measured until it can be believed, or refused with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from gourmet.bench import figures, generator, perf_analyzer, triton_counts, trust
from gourmet.bench.answers import Answers
from gourmet.bench.generator import Pace, Traffic
from gourmet.bench.perf_analyzer import Measurement, PerfAnalyzerError, Profile
from gourmet.bench.results import Check, Demand, Latency, Point, Split, Usage, Window
from gourmet.bench.rows import Rows, for_perf_analyzer
from gourmet.bench.triton_counts import Counts
from gourmet.bench.usage import ServerProcesses, Spent
from gourmet.bench.wire import App, TritonGrpc, TritonHttp, Wire, in_shared_memory, requests
from gourmet.errors import UsageError
from gourmet.serving.asking import triton

Client = Literal["auto", "perf-analyzer", "gourmet"]
OnTime = Callable[[float], None]

# The web app's own readiness question is counted by Triton too.
_OTHERS_BEHIND_THE_APP: Final = 0.02
# Triton books a request shortly after it answered it.
_BOOKED_WITHIN_S: Final = 3.0
_SEED: Final = 1


@dataclass(frozen=True)
class Target:
    """Where to ask, host:port each."""

    url: str = "localhost:8000"
    grpc_url: str = "localhost:8001"
    app_url: str = "localhost:5000"


@dataclass(frozen=True)
class Effort:
    """How long to look, and what to put up with."""

    window_s: float = 1.0
    windows: int = 5
    warm_up_s: float = 1.0
    attempts: int = 3
    steadiness: float = 0.10
    errors_allowed: float = 0.0
    client: Client = "auto"

    @property
    def measure_s(self) -> float:
        return self.windows * self.window_s


@dataclass(frozen=True)
class Subject:
    """A model, what it is asked and what it must answer."""

    model: str
    rows: Rows
    answers: Answers


def wire_for(target: Target, demand: Demand, rows: Rows, regions: Any = None) -> Wire:
    """The way of asking that a demand wants."""
    if demand.through == "app":
        return App(target.app_url, rows.pictures)
    if demand.protocol == "grpc":
        return TritonGrpc(target.grpc_url, demand.model, rows, regions)
    return TritonHttp(target.url, demand.model, rows, regions)


def check_possible(demand: Demand, rows: Rows, effort: Effort) -> None:
    """Raise UsageError for what cannot be asked."""
    if demand.batch > 1 and not rows.batched:
        raise UsageError(f"{demand.model} takes one input a request (max_batch_size 0): drop --batch")
    if demand.through == "app" and (not rows.pictures or demand.batch > 1 or demand.shared_memory):
        raise UsageError("the web app takes one photo a request: no --batch, no --shared-memory, no tensors")
    only_ours = demand.arrivals != "closed" or demand.through == "app" or effort.errors_allowed > 0
    if effort.client == "perf-analyzer" and only_ours:
        raise UsageError(
            "perf_analyzer measures closed loops at Triton, and gives up at the first error: "
            "use --client gourmet for rates, the app and --allow-errors"
        )


def measure(
    subject: Subject,
    demand: Demand,
    target: Target,
    effort: Effort,
    arm: str = "",
    on_time: OnTime = lambda _: None,
) -> Point:
    """A point that passed every check; raises Untrusted. What was merely disturbed is tried again."""
    check_possible(demand, subject.rows, effort)
    with triton(target.url) as client:
        config = client.get_model_config(demand.model)
    for attempt in range(1, effort.attempts + 1):
        try:
            point = _attempt(subject, demand, target, effort, config, on_time)
        except trust.Disturbed:
            if attempt == effort.attempts:
                raise
        else:
            return replace(point, arm=arm or demand.model, attempts=attempt)
    raise AssertionError("an attempt returns or raises")


def _attempt(
    subject: Subject,
    demand: Demand,
    target: Target,
    effort: Effort,
    config: Mapping[str, Any],
    on_time: OnTime,
) -> Point:
    ours = demand.arrivals != "closed" or demand.through == "app" or effort.errors_allowed > 0
    ours = ours or effort.client == "gourmet"
    if ours:
        return _with_our_client(subject, demand, target, effort, config, on_time)
    return _with_perf_analyzer(subject, demand, target, effort, config, on_time)


class _Watch:
    """Looks at the server when a measurement begins and when it ends."""

    def __init__(self, target: Target, demand: Demand) -> None:
        self._url, self._model = target.url, demand.model
        self._triton = ServerProcesses(target.url)
        self._app = ServerProcesses(target.app_url) if demand.through == "app" else None
        self._spent: list[tuple[Spent | None, Spent | None]] = []
        self._counts: list[Counts] = []
        self._memory: tuple[float | None, float | None] = (None, None)

    def look(self) -> None:
        self._counts.append(triton_counts.look(self._url, self._model))
        self._spent.append((self._triton.spent(), self._app.spent() if self._app else None))
        if len(self._spent) > 1:
            self._memory = (self._triton.memory_mib(), self._app.memory_mib() if self._app else None)

    @property
    def counted(self) -> Counts:
        return self._counts[-1].since(self._counts[0])

    def usage(self, client_cores: float) -> Usage:
        first, last = self._spent[0], self._spent[-1]
        return Usage(
            client_cores,
            self._triton.cores(first[0], last[0]),
            self._memory[0],
            self._app.cores(first[1], last[1]) if self._app else None,
            self._memory[1],
        )


def _with_our_client(
    subject: Subject,
    demand: Demand,
    target: Target,
    effort: Effort,
    config: Mapping[str, Any],
    on_time: OnTime,
) -> Point:
    watch = _Watch(target, demand)
    pace = Pace(effort.warm_up_s, effort.measure_s)
    traffic, checks = _checked_traffic(subject, demand, target, effort, pace, watch, on_time)
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
    if closed:
        law = _littles_law(demand, demand.level, rate, took.mean)
    else:
        due_per_s = float(inside.sum()) / (ended - began)
        law = _littles_law(demand, figures.in_flight(due, done, began, ended), due_per_s, took.mean)
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
        config=config,
    )


def _littles_law(demand: Demand, in_flight: float, rate: float, mean_ms: float) -> Check:
    off = figures.little(in_flight, rate, mean_ms / 1000)
    return trust.littles_law(demand, off, in_flight, rate * mean_ms / 1000)


def _checked_traffic(
    subject: Subject,
    demand: Demand,
    target: Target,
    effort: Effort,
    pace: Pace,
    watch: _Watch,
    on_time: OnTime = lambda _: None,
) -> tuple[Traffic, tuple[Check, ...]]:
    """Load from our client, every answer checked and every row accounted for."""
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
    errors = trust.few_errors(traffic.errors, len(traffic.done), effort.errors_allowed)
    counted = _booked(target, demand, before, traffic.rows).rows
    others = _OTHERS_BEHIND_THE_APP if demand.through == "app" else 0.0
    rows = trust.rows_counted(counted, traffic.rows, others_allowed=others)
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


def _with_perf_analyzer(
    subject: Subject,
    demand: Demand,
    target: Target,
    effort: Effort,
    config: Mapping[str, Any],
    on_time: OnTime,
) -> Point:
    # perf_analyzer looks at no answer, so the same load comes from us first, every answer checked.
    pace = Pace(0.0, max(0.5, effort.warm_up_s))
    _, checks = _checked_traffic(subject, demand, target, effort, pace, _Watch(target, demand))
    watch = _Watch(target, demand)
    with tempfile.TemporaryDirectory(prefix="gourmet-bench-") as folder:
        data = for_perf_analyzer(subject.rows, Path(folder) / "rows.json")
        got = _profile(demand, target, effort, data, watch, on_time)
    counted = watch.counted
    if counted.failed:
        checks_failed = {"an error counted by Triton": counted.failed}
        checks = (*checks, trust.few_errors(checks_failed, counted.requests, effort.errors_allowed))
    trust.rows_counted(counted.rows, counted.requests * demand.batch)
    rate = got.measured.requests_per_s
    measured = got.measured
    took = Latency(got.mean_ms, measured.p50_ms, measured.p90_ms, measured.p95_ms, measured.p99_ms)
    seen = tuple(Window(each.rows_per_s / demand.batch, each.mean_ms) for each in got.passes)
    off = figures.unsteadiness([window.requests_per_s for window in seen])
    return Point(
        arm="",
        demand=demand,
        client="perf_analyzer",
        rows_per_s=figures.interval([each.rows_per_s for each in got.passes]),
        latency_ms=took,
        split_ms=_split(measured, got.mean_ms),
        batches=counted.batches(),
        windows=seen,
        requests=got.requests,
        errors={},
        usage=watch.usage(got.client_cores),
        checks=(
            *checks,
            trust.steady(demand, seen, off, 2 * effort.steadiness),
            _littles_law(demand, demand.level, rate, got.mean_ms),
        ),
        config=config,
    )


def _split(measured: Measurement, mean_ms: float) -> Split:
    """perf_analyzer's own split, which is of the same windows as its latency."""
    inside = (
        measured.queue_ms,
        measured.compute_input_ms,
        measured.compute_infer_ms,
        measured.compute_output_ms,
    )
    return Split(*inside, max(0.0, mean_ms - sum(inside)))


def _profile(
    demand: Demand, target: Target, effort: Effort, data: Path, watch: _Watch, on_time: OnTime
) -> Profile:
    most = 2 * perf_analyzer.WINDOWS + 2
    passed = 0

    def on_line(line: str) -> None:
        nonlocal passed
        if line.startswith("Request concurrency"):
            watch.look()
        elif line.startswith("Pass ["):
            passed += 1
            on_time(min(0.99, passed / perf_analyzer.WINDOWS))
        elif line.startswith("Request count"):
            watch.look()

    load = perf_analyzer.Load(
        demand.model,
        target.grpc_url if demand.protocol == "grpc" else target.url,
        demand.protocol,
        int(demand.level),
        demand.batch,
        input_data=data,
        shared_memory=demand.shared_memory,
        window_ms=round(1000 * effort.measure_s / perf_analyzer.WINDOWS),
        max_windows=most,
        stability_percent=100 * effort.steadiness,
    )
    try:
        return perf_analyzer.profile(load, on_line)
    except PerfAnalyzerError as exc:
        if "Failed to obtain stable measurement" not in str(exc):
            raise
        raise trust.Unsteady(
            f"{demand}: no {perf_analyzer.WINDOWS} windows of {most} in a row came within "
            f"{effort.steadiness:.0%} of each other: something else runs here; wait, or use a longer --window"
        ) from exc
