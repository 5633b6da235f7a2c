"""The pictures of a benchmark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Final

from gourmet.measure.comparison import Pair
from gourmet.measure.results import Point, Split
from gourmet.reports import chart
from gourmet.reports.chart import Bar, Series

_NUMBER: Final = re.compile(r"\d+(?: µs)?")
PHASES: Final[Mapping[str, str]] = {
    "queue": "#d55e00",
    "input": "#b8860b",
    "infer": "#1b5e9b",
    "output": "#8c4a86",
    "network": "#9aa0a6",
}


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
    """One line for each variant: right is faster, down is sooner."""
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
                says=[
                    " ".join(_NUMBER.findall(point.arm)) if "…" in name else point.load.at for point in mine
                ],
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
    shown = [split_bar(point.name, point.split_ms, f"{point.latency_ms.mean:.3g}") for point in points]
    title = "mean latency of every point by where it went"
    return chart.bars(shown, title, "mean latency, ms", colours=PHASES)


def split_bar(name: str, split_ms: Split, says: str) -> Bar:
    """A mean latency by where it went."""
    split = vars(split_ms)
    parts = [(ms, PHASES[phase], f"{phase} {ms:.2f} ms") for phase, ms in split.items()]
    return Bar(name, sum(split.values()), parts=parts, says=says)


def batch_sizes(points: Sequence[Point]) -> chart.Drawing:
    """For every point, the share of rows that went through the network in batches of each size."""
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


def ratios(pairs: Sequence[Pair]) -> chart.Drawing:
    """Every pair's ratio with its interval, around the line where nothing changed."""
    colours = {"slower": chart.COLOURS[6], "faster": chart.COLOURS[2], "same": chart.FAINT}
    shown = [
        Bar(
            pair.name, speed.value, speed.low, speed.high, colours[pair.verdict], pair.verdict, f"{speed:.3f}"
        )
        for pair in pairs
        for speed in [pair.speed]
    ]
    title, counts = "speed of every pair, now over before", "speed now ÷ before, with 95 % interval"
    return chart.bars(shown, title, counts, around=1)


def _lines(points: Sequence[Point]) -> list[str]:
    """For every point, the line that it belongs to.

    Where there are more arms than colours, arms whose names differ in a number alone are one line.
    """
    names = [f"{point.arm} {point.load.how}".strip() for point in points]
    few = len(set(names)) <= len(chart.COLOURS)
    return names if few else [_NUMBER.sub("…", name) for name in names]


def _colours(lines: Sequence[str]) -> dict[str, str]:
    return dict(zip(dict.fromkeys(lines), cycle(chart.COLOURS), strict=False))
