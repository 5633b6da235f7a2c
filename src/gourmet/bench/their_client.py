"""A point measured by NVIDIA's perf_analyzer, after a round of ours in which every answer is checked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from gourmet.bench import figures, perf_analyzer, triton_counts, trust
from gourmet.bench.generator import Pace, Traffic
from gourmet.bench.our_client import checked_traffic
from gourmet.bench.perf_analyzer import Measurement, PerfAnalyzerError, Profile
from gourmet.bench.results import Latency, Point, Split, Window
from gourmet.bench.rows import for_perf_analyzer
from gourmet.bench.task import Task, Watch

# What perf_analyzer says where its windows disagree, or are shorter than a request.
_DISTURBED: Final = ("Failed to obtain stable measurement", "No valid requests recorded")


# A window holds at least so many latencies, unless that takes too long.
_LATENCIES: Final = 10
_LONGEST_S: Final = 10.0


def measure(task: Task) -> Point:
    """The point that perf_analyzer measures; raises Untrusted."""
    demand, effort = task.demand, task.effort
    # perf_analyzer looks at no answer, so the same load comes from us first, every answer checked.
    pace = Pace(0.0, max(0.5, effort.warm_up_s))
    traffic, checks = checked_traffic(task, pace, Watch(task.target, demand))
    watch = Watch(task.target, demand)
    at_rest = triton_counts.look(task.target.url, demand.model)
    with tempfile.TemporaryDirectory(prefix="gourmet-bench-") as folder:
        data = for_perf_analyzer(task.rows, Path(folder) / "rows.json")
        got = _profile(task, data, watch, _window_s(task, traffic))
    counted = watch.counted
    if counted.failed:
        checks_failed = {"an error counted by Triton": counted.failed}
        checks = (*checks, trust.few_errors(checks_failed, counted.requests, effort.errors_allowed))
    # Looked at before and after the load: under it, Triton's two counts are not of the same moment.
    whole = triton_counts.booked(
        task.target.url, demand.model, at_rest, lambda counts: counts.rows == counts.requests * demand.batch
    )
    trust.rows_counted(whole.rows, whole.requests * demand.batch)
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
            trust.rate_counted(demand, counted.rows / watch.seconds, measured.rows_per_s, got.requests),
            trust.littles_law(demand, demand.level, rate * got.mean_ms / 1000),
        ),
        config=task.config,
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


def _window_s(task: Task, traffic: Traffic) -> float:
    """A window's seconds: as asked, and long enough that the requests it cuts through do not matter."""
    due, _, done = traffic.arrays()
    latency_s = float((done - due).mean()) if done.size else 0.0
    asked_s = task.effort.measure_s / perf_analyzer.WINDOWS
    return max(asked_s, min(_LONGEST_S, _LATENCIES * latency_s))


def _profile(task: Task, data: Path, watch: Watch, window_s: float) -> Profile:
    demand, target, effort = task.demand, task.target, task.effort
    most = 2 * perf_analyzer.WINDOWS + 2
    passed = 0

    def on_line(line: str) -> None:
        nonlocal passed
        if line.startswith("Request concurrency"):
            watch.look()
        elif line.startswith("Pass ["):
            passed += 1
            task.on_time(min(0.99, passed / perf_analyzer.WINDOWS))
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
        window_ms=round(1000 * window_s),
        max_windows=most,
        stability_percent=100 * effort.steadiness,
    )
    try:
        return perf_analyzer.profile(load, on_line)
    except PerfAnalyzerError as exc:
        if not any(words in str(exc) for words in _DISTURBED):
            raise
        raise trust.Unsteady(
            f"{demand}: no {perf_analyzer.WINDOWS} windows of {most} in a row came within "
            f"{effort.steadiness:.0%} of each other: something else runs here; wait, or use a longer --window"
        ) from exc
