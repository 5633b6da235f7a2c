"""A point measured by NVIDIA's perf_analyzer, after a round of ours in which every answer is checked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from gourmet.measure import perf_analyzer, server_probe, stats, validity
from gourmet.measure.async_client import checked_traffic
from gourmet.measure.generator import Traffic
from gourmet.measure.inputs import for_perf_analyzer
from gourmet.measure.perf_analyzer import PerfAnalyzerError, Profile
from gourmet.measure.results import Latency, Point, Split
from gourmet.measure.server_probe import ServerProbe
from gourmet.measure.task import Task
from gourmet.serving.statistics import booked, statistics_now

# What perf_analyzer says where its windows disagree, or are shorter than a request.
_DISTURBED: Final = ("Failed to obtain stable measurement", "No valid requests recorded")


# A window holds at least so many latencies, unless that takes too long.
_LATENCIES: Final = 10
_LONGEST_S: Final = 10.0


def measure(task: Task) -> Point:
    """The point that perf_analyzer measures; raises Untrusted."""
    demand, effort = task.demand, task.effort
    # perf_analyzer looks at no answer, so the same load comes from us first, every answer checked.
    first, probe = (ServerProbe(task.target.url, task.target.app_url, demand) for _ in range(2))
    traffic, checks = checked_traffic(task, 0.0, max(0.5, effort.warm_up_s), first)
    at_rest = statistics_now(task.target.url, demand.model)
    with tempfile.TemporaryDirectory(prefix="gourmet-bench-") as folder:
        data = for_perf_analyzer(task.rows, Path(folder) / "rows.json")
        got = _profile(task, data, probe, _window_s(task, traffic))
    counted = probe.counted
    if counted.failures:
        failed = {"an error counted by Triton": counted.failures}
        checks = (*checks, validity.few_errors(failed, counted.requests, effort.errors_allowed))
    # Looked at before and after the load: under it, Triton's two counts are not of the same moment.
    whole = booked(
        task.target.url, demand.model, at_rest, lambda counts: counts.rows == counts.requests * demand.batch
    )
    validity.rows_counted(whole.rows, whole.requests * demand.batch)
    measured = got.measured
    took = Latency(got.mean_ms, measured.p50_ms, measured.p90_ms, measured.p95_ms, measured.p99_ms)
    rates = [window.requests_per_s for window in got.windows]
    off = stats.unsteadiness(rates)
    return Point(
        arm="",
        demand=demand,
        client="perf_analyzer",
        rows_per_s=stats.interval([demand.batch * each for each in rates]),
        latency_ms=took,
        # perf_analyzer's own split, which is of the same windows as its latency.
        split_ms=Split(
            measured.queue_ms,
            measured.compute_input_ms,
            measured.compute_infer_ms,
            measured.compute_output_ms,
            max(0.0, got.mean_ms - measured.server_ms),
        ),
        batches=server_probe.batches(counted),
        windows=got.windows,
        requests=got.requests,
        errors={},
        usage=probe.usage(got.client_cores),
        checks=(
            *checks,
            validity.steady(demand, got.windows, off, 2 * effort.steadiness),
            validity.rate_counted(demand, counted.rows / probe.seconds, measured.rows_per_s, got.requests),
            validity.littles_law(demand, demand.level, measured.requests_per_s * got.mean_ms / 1000),
        ),
        config=task.config,
    )


def _window_s(task: Task, traffic: Traffic) -> float:
    """A window's seconds: as asked, and long enough that the requests it cuts through do not matter."""
    due, _, done = traffic.arrays()
    latency_s = float((done - due).mean()) if done.size else 0.0
    asked_s = task.effort.measure_s / perf_analyzer.WINDOWS
    return max(asked_s, min(_LONGEST_S, _LATENCIES * latency_s))


def _profile(task: Task, data: Path, probe: ServerProbe, window_s: float) -> Profile:
    demand, target, effort = task.demand, task.target, task.effort
    most = 2 * perf_analyzer.WINDOWS + 2
    passed = 0

    def on_line(line: str) -> None:
        nonlocal passed
        if line.startswith("Request concurrency"):
            probe.look()
        elif line.startswith("Pass ["):
            passed += 1
            task.on_time(min(0.99, passed / perf_analyzer.WINDOWS))
        elif line.startswith("Request count"):
            probe.look()

    load = perf_analyzer.PerfLoad(
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
        raise validity.Disturbed(
            f"{demand}: no {perf_analyzer.WINDOWS} windows of {most} in a row came within "
            f"{effort.steadiness:.0%} of each other: something else runs here; wait, or use a longer --window"
        ) from exc
