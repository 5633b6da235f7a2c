"""A point measured by NVIDIA's perf_analyzer, after a round of ours in which every answer is checked."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from gourmet.measure import perf_analyzer, server_probe, stats, validity
from gourmet.measure.async_client import checked_traffic
from gourmet.measure.inputs import for_perf_analyzer
from gourmet.measure.perf_analyzer import WINDOWS, PerfAnalyzerError, PerfLoad, Profile
from gourmet.measure.results import Latency, LoadSpec, Point, Split
from gourmet.measure.server_probe import ServerProbe
from gourmet.measure.task import Addresses, MeasureOptions, Workload

_MOST_WINDOWS: Final = 2 * WINDOWS + 2
# What perf_analyzer says where its windows disagree, or are shorter than a request.
_DISTURBED: Final = ("Failed to obtain stable measurement", "No valid requests recorded")
# A window holds at least so many latencies, unless that takes too long.
_LATENCIES: Final = 10
_LONGEST_S: Final = 10.0


def measure(workload: Workload, demand: LoadSpec, target: Addresses, effort: MeasureOptions) -> Point:
    """The point that perf_analyzer measures; raises Untrusted."""
    # perf_analyzer looks at no answer, so the same load comes from us first, every answer checked.
    first = replace(effort, warm_up_s=0.0, windows=1, window_s=max(0.5, effort.warm_up_s))
    traffic, checks = checked_traffic(workload, demand, target, first)
    due, _, done = traffic.arrays()
    latency_s = float((done - due).mean()) if done.size else 0.0
    # As asked, and long enough that the requests that a window cuts through do not matter.
    window_s = max(effort.measure_s / WINDOWS, min(_LONGEST_S, _LATENCIES * latency_s))
    probe = ServerProbe(target, demand)
    with tempfile.TemporaryDirectory(prefix="gourmet-bench-") as folder:
        load = PerfLoad(
            demand,
            target.grpc_url if demand.protocol == "grpc" else target.url,
            input_data=for_perf_analyzer(workload.rows, Path(folder) / "rows.json"),
            window_ms=round(1000 * window_s),
            max_windows=_MOST_WINDOWS,
            stability_percent=100 * effort.steadiness,
        )
        got = _profile(load, probe)
    counted = probe.counted
    measured = got.measured
    rates = [window.requests_per_s for window in got.windows]
    return Point(
        arm="",
        demand=demand,
        client="perf_analyzer",
        rows_per_s=stats.interval([demand.batch * each for each in rates]),
        latency_ms=Latency(got.mean_ms, measured.p50_ms, measured.p90_ms, measured.p95_ms, measured.p99_ms),
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
            validity.steady(got.windows, stats.unsteadiness(rates), 2 * effort.steadiness),
            validity.rate_counted(
                counted.rows / probe.seconds, measured.rows_per_s, demand.level, got.requests
            ),
            validity.littles_law(demand.level, measured.requests_per_s * got.mean_ms / 1000),
        ),
        config={},
    )


def _profile(load: PerfLoad, probe: ServerProbe) -> Profile:
    """Triton is looked at when perf_analyzer begins to measure and when it has ended."""

    def on_line(line: str) -> None:
        if line.lstrip().startswith(("Request concurrency", "Request count")):
            probe.look()

    try:
        return perf_analyzer.profile(load, on_line)
    except PerfAnalyzerError as exc:
        if not any(words in str(exc) for words in _DISTURBED):
            raise
        raise validity.Disturbed(
            f"no {WINDOWS} windows of {_MOST_WINDOWS} in a row came within {load.stability_percent:.0f}% "
            "of each other: something else runs here; wait, or use a longer --window"
        ) from exc
