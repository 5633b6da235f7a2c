"""A benchmark as rows: for the terminal, for a page, and as CSV in perf_analyzer's own columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from gourmet.measure.compare import Pair
from gourmet.measure.results import Bench, Latency, Point

HEADINGS: Final = (
    "point",
    "rows/s",
    "p50 ms",
    "p90 ms",
    "p95 ms",
    "p99 ms",
    "queue + input + infer + output + network ms",
    "rows per batch",
    "server CPU and memory",
)


def row(point: Point) -> tuple[str, ...]:
    took, split = point.latency_ms, point.split_ms
    parts = (split.queue, split.input, split.infer, split.output, split.network)
    return (
        point.name,
        f"{point.rows_per_s:.1f}",
        *(f"{value:.2f}" for value in (took.p50, took.p90, took.p95, took.p99)),
        " + ".join(f"{part:.2f}" for part in parts),
        f"{point.executed_rows:.2f}",
        _server(point),
    )


def _server(point: Point) -> str:
    cores, memory = point.usage.server_cores, point.usage.server_memory_mib
    if cores is None or memory is None:
        return "not on this machine"
    return f"{cores:.2f} cores {memory:.0f} MiB"


STREAM_HEADINGS: Final = (
    "point",
    *("first piece p50 ms", "p95 ms", "p99 ms"),
    *("between pieces p50 ms", "p95 ms", "p99 ms"),
    *("pieces/s", "pieces per answer"),
)


def stream_rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """The points whose answers came in pieces, under the STREAM_HEADINGS."""
    return [
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


PAIR_HEADINGS: Final = ("point", "before rows/s", "now rows/s", "throughput ×", "mean latency ×", "p95 ×", "")


def pair_row(pair: Pair) -> tuple[str, ...]:
    return (
        pair.name,
        f"{pair.before.rows_per_s:.1f}",
        f"{pair.now.rows_per_s:.1f}",
        f"{pair.rate:.3f}",
        f"{pair.latency:.3f}",
        f"{pair.p95:.3f}",
        pair.verdict,
    )


def as_csv(bench: Bench) -> str:
    """perf_analyzer's columns, in its units (microseconds), after ours that tell the points apart.

    What our client cannot tell from the network is counted as network: its send and receive are empty.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)
    for point in bench.points:
        demand, split, took = point.demand, point.split_ms, point.latency_ms
        closed = demand.arrivals == "closed"
        times = (split.network, split.queue, split.input, split.infer, split.output)
        writer.writerow(
            [
                *(point.arm, demand.model, point.client, demand.protocol, demand.through, demand.batch),
                *((f"{demand.level:g}", "") if closed else ("", f"{demand.level:g}")),
                f"{point.rows_per_s.value:.3f}",
                "",
                *(round(1000 * ms) for ms in times),
                "",
                *(round(1000 * ms) for ms in (took.p50, took.p90, took.p95, took.p99, took.mean)),
            ]
        )
    return out.getvalue()


_CSV: Final = (
    *("Arm", "Model", "Client", "Protocol", "Through", "Batch"),
    *("Concurrency", "Request Rate", "Inferences/Second", "Client Send", "Network+Server Send/Recv"),
    *("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output", "Client Recv"),
    *("p50 latency", "p90 latency", "p95 latency", "p99 latency", "Avg latency"),
)


def batch_table(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Per point and batch size: executions, share of the rows, milliseconds an execution."""
    rows: list[tuple[str, ...]] = []
    for point in points:
        total = sum(size.rows * size.executions for size in point.batches) or 1
        rows += [
            (
                point.name,
                str(size.rows),
                str(size.executions),
                f"{size.rows * size.executions / total:.1%}",
                f"{size.infer_ms:.2f}",
            )
            for size in point.batches
        ]
    return rows
