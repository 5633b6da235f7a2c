"""A benchmark as tables for a terminal, a page and docs/, and as CSV in perf_analyzer's own columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from gourmet.measure.comparison import Pair
from gourmet.measure.results import HEADINGS, Bench, Latency, Point, Usage

# Headings, and rows under them.
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def figures(points: Sequence[Point]) -> Table:
    split = "queue + input + infer + output + network ms"
    headings = ("point", "rows/s", "p50 ms", "p90 ms", "p95 ms", "p99 ms", split, "rows per batch")
    return (*headings, "server CPU and memory"), [
        (
            point.name,
            f"{point.rows_per_s:.1f}",
            *(f"{ms:.2f}" for ms in (took.p50, took.p90, took.p95, took.p99)),
            " + ".join(f"{ms:.2f}" for ms in vars(point.split_ms).values()),
            f"{point.executed_rows:.2f}",
            _server(point.usage),
        )
        for point in points
        for took in [point.latency_ms]
    ]


def _server(usage: Usage) -> str:
    if usage.server_cores is None or usage.server_memory_mib is None:
        return "not on this machine"
    return f"{usage.server_cores:.2f} cores {usage.server_memory_mib:.0f} MiB"


def streamed(points: Sequence[Point]) -> Table:
    """The points whose answers came in pieces."""
    first, between = (f"{which} p50 ms" for which in ("first piece", "between pieces"))
    higher = ("p95 ms", "p99 ms")
    return ("point", first, *higher, between, *higher, "pieces/s", "pieces per answer"), [
        (
            point.name,
            *_percentiles(point.stream.first_ms),
            *_percentiles(point.stream.between_ms),
            f"{point.stream.pieces_per_s:.1f}",
            f"{point.stream.pieces_per_answer:.2f}",
        )
        for point in points
        if point.stream
    ]


def _percentiles(took: Latency | None) -> tuple[str, ...]:
    return tuple(f"{value:.2f}" for value in (took.p50, took.p95, took.p99)) if took else ("–",) * 3


def goals(bench: Bench) -> Table:
    return HEADINGS, [goal.as_row() for goal in bench.goals]


def pairs(compared: Sequence[Pair]) -> Table:
    headings = ("point", "before rows/s", "now rows/s", "throughput ×", "mean latency ×", "p95 ×", "")
    return headings, [
        (
            pair.name,
            *(f"{point.rows_per_s:.1f}" for point in (pair.before, pair.now)),
            *(f"{ratio:.3f}" for ratio in (pair.rate, pair.latency, pair.p95)),
            pair.verdict,
        )
        for pair in compared
    ]


def as_csv(bench: Bench) -> str:
    """perf_analyzer's columns, in its units (microseconds), after ours that tell the points apart.

    What our client cannot tell from the network is counted as network: its send and receive are empty.
    """
    rows = [_cells(point) for point in bench.points]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _cells(point: Point) -> dict[str, object]:
    load, split, took = point.load, point.split_ms, point.latency_ms
    level, closed = f"{load.level:g}", load.arrivals == "closed"

    def microseconds(ms: float) -> int:
        return round(1000 * ms)

    return {
        "Arm": point.arm,
        "Model": load.model,
        "Client": point.client,
        "Protocol": load.protocol,
        "Through": load.through,
        "Batch": load.batch,
        "Concurrency": level if closed else "",
        "Request Rate": "" if closed else level,
        "Inferences/Second": f"{point.rows_per_s.value:.3f}",
        "Client Send": "",
        "Network+Server Send/Recv": microseconds(split.network),
        "Server Queue": microseconds(split.queue),
        "Server Compute Input": microseconds(split.input),
        "Server Compute Infer": microseconds(split.infer),
        "Server Compute Output": microseconds(split.output),
        "Client Recv": "",
        **{f"p{share} latency": microseconds(getattr(took, f"p{share}")) for share in (50, 90, 95, 99)},
        "Avg latency": microseconds(took.mean),
    }
