"""Write a benchmark as JSON, tables for a terminal, CSV and one chart, into a folder for each run."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Final

from gourmet.bench.comparison import Pair
from gourmet.bench.results import FILE, Bench, Latency, Point, Usage, as_json
from gourmet.reports import chart

CHART: Final = "chart.svg"
_OTHERS: Final = "#9aa0a6"

# Headings, and rows under them.
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def save(bench: Bench, folder: Path | None = None) -> Path:
    """Write a run, by default into a new folder under runs/bench named by its time and title."""
    folder = folder or Path("runs", "bench", folder_name(bench.when, bench.title))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(as_json(bench))
    (folder / "bench.csv").write_text(as_csv(bench))
    save_chart(folder, bench)
    return folder


def save_chart(folder: Path, bench: Bench, roles: Mapping[str, str] | None = None) -> None:
    (folder / CHART).write_text(throughput(bench.title, bench.points, roles), encoding="utf-8")


def folder_name(when: str, title: str) -> str:
    moment = re.sub(r"[^0-9T]", "", when)[:15].replace("T", "-")
    named = re.sub(r"[^a-z0-9_.]+", "-", title.lower()).strip("-")
    return f"{moment}-{named}"[:80]


def figures(points: Sequence[Point]) -> Table:
    # Of a server that is not Triton, there are no parts and no batches.
    split = "queue + input + infer + output + network ms"
    headings = ("point", "rows/s", "p50 ms", "p90 ms", "p95 ms", "p99 ms", split, "rows per batch")
    failed = ("errors",) if any(point.errors for point in points) else ()
    return (*headings, "server CPU and memory", *failed), [
        (
            point.name,
            f"{point.rows_per_s:.1f}",
            *(f"{ms:.2f}" for ms in (took.p50, took.p90, took.p95, took.p99)),
            " + ".join(f"{ms:.2f}" for ms in vars(point.split_ms).values()) if point.batches else "–",
            f"{point.executed_rows:.2f}" if point.batches else "–",
            _server(point.usage, "not on this machine" if point.batches else "–"),
            *(str(sum(point.errors.values())) for _ in failed),
        )
        for point in points
        for took in [point.latency_ms]
    ]


def _server(usage: Usage, unknown: str) -> str:
    if usage.server_cores is None or usage.server_memory_mib is None:
        return unknown
    app = f", app {usage.app_cores:.2f} cores {usage.app_memory_mib:.0f} MiB" if usage.app_memory_mib else ""
    return f"{usage.server_cores:.2f} cores {usage.server_memory_mib:.0f} MiB{app}"


def streamed(points: Sequence[Point]) -> Table:
    """Return the points whose answers came in pieces."""
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
    """Return a CSV: columns that identify the points, then perf_analyzer's in its units (microseconds).

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


def throughput(title: str, points: Sequence[Point], roles: Mapping[str, str] | None = None) -> chart.Drawing:
    """Draw the throughput of every point with its interval; each variant has its colour.

    With `roles`, which name the arms that matter, only these have a colour.
    """
    kinds = [(roles or {}).get(point.arm, "") if roles else _variant(point) for point in points]
    colours = dict(zip(dict.fromkeys(filter(None, kinds)), cycle(chart.COLOURS), strict=False))
    shown = [
        chart.Bar(
            f"{point.name}: p95 {point.latency_ms.p95:.{0 if point.latency_ms.p95 >= 100 else 1}f} ms",
            rate.value,
            rate.low,
            rate.high,
            colours.get(kind, _OTHERS),
            hint=f"{rate:.1f}",
        )
        for point, kind in zip(points, kinds, strict=True)
        for rate in [point.rows_per_s]
    ]
    # An interval of two turns may be many times its figure; it ends with the picture.
    end = 2 * max(bar.value for bar in shown)
    end = min(end, max(max(bar.value, bar.high or 0.0) for bar in shown))
    bars = chart.bars(shown, title, "rows per second", end=end, colours=colours if roles else None)
    return chart.stacked(title, [("throughput with its 95 % interval, and p95 latency", bars)])


def _variant(point: Point) -> str:
    """Return what the points of a sweep have in common."""
    return f"{point.arm} {point.load.how}".strip()
