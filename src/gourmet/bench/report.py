"""Write a benchmark as a page, tables, charts and CSV, into a folder for each run."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

from gourmet.bench.comparison import Pair
from gourmet.bench.results import FILE, Bench, Latency, Point, Usage, as_json
from gourmet.reports import chart, page
from gourmet.reports.chart import Bar, Series
from gourmet.triton_client.model_config import as_pbtxt, summary

# A page with figures of benchmarks: bench.html, or a template that extends it.
render: Final = partial(page.render, report=sys.modules[__name__], summary=summary, as_pbtxt=as_pbtxt)
PHASES: Final[Mapping[str, str]] = {
    "queue": "#d55e00",
    "input": "#b8860b",
    "infer": "#1b5e9b",
    "output": "#8c4a86",
    "network": "#9aa0a6",
}

# Headings, and rows under them.
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def as_page(bench: Bench) -> str:
    return render("bench/bench.html", bench=bench, **vars(bench))


def save(bench: Bench, folder: Path | None = None) -> Path:
    """Write a run, by default into a new folder under runs/bench named by its time and title."""
    folder = folder or Path("runs", "bench", folder_name(bench.when, bench.title))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(as_json(bench))
    (folder / "bench.csv").write_text(as_csv(bench))
    (folder / "index.html").write_text(as_page(bench))
    return folder


def folder_name(when: str, title: str) -> str:
    moment = re.sub(r"[^0-9T]", "", when)[:15].replace("T", "-")
    named = re.sub(r"[^a-z0-9_.]+", "-", title.lower()).strip("-")
    return f"{moment}-{named}"[:80]


# Tables


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


# Charts


def throughput(points: Sequence[Point]) -> chart.Drawing:
    colours = _colours(lines := _lines(points))
    shown = [
        Bar(point.name, rate.value, rate.low, rate.high, colours[line], hint=f"{rate:.1f}")
        for point, line in zip(points, lines, strict=True)
        for rate in [point.rows_per_s]
    ]
    # An interval of two turns may be many times its figure; it ends with the picture.
    end = 2 * max(bar.value for bar in shown)
    counts = "rows per second, with 95 % interval"
    end = min(end, max(max(bar.value, bar.high or 0.0) for bar in shown))
    return chart.bars(shown, "throughput of every point", counts, end=end)


def latency_against_throughput(points: Sequence[Point]) -> chart.Drawing:
    """Draw a line for each variant: further right is faster, lower has less latency."""
    lines, shown = _lines(points), []
    for name, colour in _colours(lines).items():
        mine = [point for point, line in zip(points, lines, strict=True) if line == name]
        shown.append(
            Series(
                name,
                [(point.rows_per_s.value, point.latency_ms.p95) for point in mine],
                colour,
                radii=[4] * len(mine),
                hints=[f"{point.name}: p95 {point.latency_ms.p95:.2f} ms" for point in mine],
                says=[point.load.at for point in mine],
            )
        )
    furthest = 1.1 * max(point.rows_per_s.value for point in points)
    return chart.lines(
        shown,
        "p95 latency against throughput",
        ("rows per second", "p95 latency, ms"),
        x_range=(0, furthest),
        y_range=(0, max(point.latency_ms.p95 for point in points)),
        size=(chart.WIDTH, 380),
    )


def stacked_latency(points: Sequence[Point]) -> chart.Drawing:
    shown = []
    for point in points:
        split = vars(point.split_ms)
        parts = [(ms, PHASES[phase], f"{phase} {ms:.2f} ms") for phase, ms in split.items()]
        says = f"{point.latency_ms.mean:.3g}"
        shown.append(Bar(point.name, sum(split.values()), parts=parts, says=says))
    title = "mean latency of every point by where it went"
    return chart.bars(shown, title, "mean latency, ms", colours=PHASES)


def batch_sizes(points: Sequence[Point]) -> chart.Drawing:
    """Return, for every point, the share of rows that the network computed in batches of each size."""
    sizes = sorted({size.rows for point in points for size in point.batches})
    colours = dict(zip(sizes, cycle(chart.COLOURS), strict=False))
    shown = []
    for point in points:
        parts = [
            (share, colours[size.rows], f"{share:.1%} of the rows in batches of {size.rows}")
            for size, share in point.shares
        ]
        shown.append(Bar(point.name, 1.0, parts=parts, says=f"{point.executed_rows:.1f}"))
    title = "share of rows by the size of the batch they were executed in"
    named = {str(size): colour for size, colour in colours.items()} if len(sizes) > 1 else None
    return chart.bars(shown, title, "share of the rows; the mean batch at the end", colours=named)


def _lines(points: Sequence[Point]) -> list[str]:
    """Return the line of the chart that each point belongs to."""
    return [f"{point.arm} {point.load.how}".strip() for point in points]


def _colours(lines: Sequence[str]) -> dict[str, str]:
    return dict(zip(dict.fromkeys(lines), cycle(chart.COLOURS), strict=False))
