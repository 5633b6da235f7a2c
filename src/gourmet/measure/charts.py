"""The pictures of a benchmark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gourmet.measure.compare import Pair
from gourmet.measure.results import Point
from gourmet.reports import chart, svg
from gourmet.reports.chart import WIDTH, Bar

_NUMBER: Final = re.compile(r"\d+(?: µs)?")
_PHASES: Final[Mapping[str, str]] = {
    "queue": "#d55e00",
    "input": "#b8860b",
    "infer": "#1b5e9b",
    "output": "#8c4a86",
    "network": "#9aa0a6",
}


def throughput(points: Sequence[Point]) -> svg.Drawing:
    colours = _by_series(points)
    shown = [
        Bar(point.name, rate.value, rate.low, rate.high, colours[series], hint=f"{rate:.1f}")
        for point, (series, _) in zip(points, _grouped(points), strict=True)
        for rate in [point.rows_per_s]
    ]
    # An interval of two turns may be many times its figure; it ends with the picture.
    most = 2 * max(bar.value for bar in shown)
    counts = "rows per second, with 95 % interval"
    most = min(most, max(max(bar.value, bar.high or 0.0) for bar in shown))
    return chart.bars(shown, "throughput of every point", counts, most=most)


def latency_against_throughput(points: Sequence[Point]) -> svg.Drawing:
    """One line an arm: right is faster, down is sooner."""
    marks = svg.ticks(0, 1.1 * max(point.rows_per_s.value for point in points))
    rises = svg.ticks(0, max(point.latency_ms.p95 for point in points))
    colours = _by_series(points)
    named, deep = svg.legend(56, 14, list(colours.items()), WIDTH - 70)
    x = svg.Scale(0, marks[-1], 56, WIDTH - 40)
    y = svg.Scale(0, rises[-1], 350 + deep, 34 + deep)
    shapes = [named, svg.across(x, marks, y.end, y.start, "rows per second")]
    shapes.append(svg.up(y, rises, x.start, x.end, "p95 latency, ms (dots; p50 below, small)"))
    grouped = _grouped(points)
    for series, colour in colours.items():
        mine = [(point, mark) for point, (name, mark) in zip(points, grouped, strict=True) if name == series]
        shapes.append(svg.path([(x(p.rows_per_s.value), y(p.latency_ms.p95)) for p, _ in mine], colour))
        for point, mark in mine:
            at, high, low = (x(point.rows_per_s.value), y(point.latency_ms.p95), y(point.latency_ms.p50))
            shapes.append(svg.line(at, high, at, low, colour, 1, "stroke-dasharray='2 3'"))
            shapes.append(svg.whisker(x, high, point.rows_per_s.low, point.rows_per_s.high, colour))
            shapes.append(svg.dot(at, low, colour, f"p50 {point.latency_ms.p50:.2f} ms", 2.5))
            shapes.append(svg.dot(at, high, colour, f"{point.name}: p95 {point.latency_ms.p95:.2f} ms"))
            shapes.append(svg.text(at + 7, high - 7, mark, colour=colour))
    return svg.picture(WIDTH, y.start + 46, "p95 latency against throughput", shapes)


def stacked_latency(points: Sequence[Point]) -> svg.Drawing:
    shown = []
    for point in points:
        split = {phase: getattr(point.split_ms, phase) for phase in _PHASES}
        parts = [(ms, _PHASES[phase], f"{phase} {ms:.2f} ms") for phase, ms in split.items()]
        shown.append(Bar(point.name, sum(split.values()), parts=parts, says=f"{point.latency_ms.mean:.3g}"))
    title = "mean latency of every point by where it went"
    return chart.bars(shown, title, "mean latency, ms", colours=_PHASES)


def batch_sizes(points: Sequence[Point]) -> svg.Drawing:
    """For every point, the share of rows that went through the network in batches of each size."""
    sizes = sorted({size.rows for point in points for size in point.batches})
    colours = {size: svg.COLOURS[place % len(svg.COLOURS)] for place, size in enumerate(sizes)}
    shown = []
    for point in points:
        rows = sum(size.rows * size.executions for size in point.batches) or 1
        shares = [(size.rows, size.rows * size.executions / rows) for size in point.batches]
        parts = [
            (share, colours[size], f"{share:.1%} of the rows in batches of {size}") for size, share in shares
        ]
        shown.append(Bar(point.name, 1.0, parts=parts, says=f"{point.executed_rows:.1f}"))
    title = "share of rows by the size of the batch they were executed in"
    named = {str(size): colour for size, colour in colours.items()} if len(sizes) > 1 else None
    return chart.bars(shown, title, "share of the rows; the mean batch at the end", colours=named)


def ratios(pairs: Sequence[Pair]) -> svg.Drawing:
    """Every pair's ratio with its interval, around the line where nothing changed."""
    colours = {"slower": svg.COLOURS[6], "faster": svg.COLOURS[2]}
    shown = [
        Bar(
            pair.name,
            pair.speed.value,
            pair.speed.low,
            pair.speed.high,
            colours.get(pair.verdict, svg.FAINT),
            pair.verdict,
            f"{pair.speed:.3f}",
        )
        for pair in pairs
    ]
    title, counts = "speed of every pair, now over before", "speed now ÷ before, with 95 % interval"
    return chart.intervals(shown, title, counts, around=1)


def _grouped(points: Sequence[Point]) -> list[tuple[str, str]]:
    """For every point, the line it belongs to and what tells it apart there.

    Where there are more arms than colours, arms whose names differ in a number alone are one line.
    """
    plain = [(_series(point), _level(point)) for point in points]
    if len({series for series, _ in plain}) <= len(svg.COLOURS):
        return plain
    return [(_NUMBER.sub("…", series), " ".join(_NUMBER.findall(series)) or level) for series, level in plain]


def _series(point: Point) -> str:
    demand = point.demand
    parts = [point.arm]
    parts += [f"b={demand.batch}"] if demand.batch > 1 else []
    parts += ["gRPC"] if demand.protocol == "grpc" else []
    parts += ["shared memory"] if demand.shared_memory else []
    parts += [demand.arrivals] if demand.arrivals != "closed" else []
    return " ".join(parts)


def _by_series(points: Sequence[Point]) -> dict[str, str]:
    names = list(dict.fromkeys(series for series, _ in _grouped(points)))
    return {name: svg.COLOURS[place % len(svg.COLOURS)] for place, name in enumerate(names)}


def _level(point: Point) -> str:
    return f"c={point.demand.level:g}" if point.demand.arrivals == "closed" else f"{point.demand.level:g}/s"
