"""The pictures of a benchmark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gourmet.bench.compare import Pair
from gourmet.bench.drawing import (
    COLOURS,
    FAINT,
    INK,
    Scale,
    across,
    box,
    dot,
    legend,
    line,
    path,
    svg,
    text,
    ticks,
    up,
    whisker,
)
from gourmet.bench.results import Point

_WIDTH: Final = 880.0
_NUMBER: Final = re.compile(r"\d+(?: µs)?")
_ROW: Final = 24.0
_PHASES: Final[Mapping[str, str]] = {
    "queue": "#d55e00",
    "input": "#b8860b",
    "infer": "#1b5e9b",
    "output": "#8c4a86",
    "network": "#9aa0a6",
}


def throughput(points: Sequence[Point]) -> str:
    """A bar a point, with its interval."""
    names, left = _labels(points)
    most = max(point.rows_per_s.high or point.rows_per_s.value for point in points)
    marks = ticks(0, most)
    x = Scale(0, marks[-1], left, _WIDTH - 60)
    bottom = 10 + _ROW * len(points)
    shapes = [across(x, marks, 6, bottom, "rows per second, with 95 % interval")]
    colours = _by_series(points)
    grouped = _grouped(points)
    for place, (point, name) in enumerate(zip(points, names, strict=True)):
        y, rate, colour = 10 + _ROW * place, point.rows_per_s, colours[grouped[place][0]]
        shapes.append(text(left - 8, y + 15, name, anchor="end"))
        shapes.append(box(left, y + 4, x(rate.value) - left, _ROW - 8, colour, f"{rate:.1f}"))
        shapes.append(whisker(x, y + _ROW / 2, rate.low, rate.high))
        end = x(max(rate.value, rate.high or 0.0))
        shapes.append(text(end + 6, y + 16, f"{rate.value:.4g}"))
    return svg(_WIDTH, bottom + 44, "throughput of every point", shapes)


def latency_against_throughput(points: Sequence[Point]) -> str:
    """One line an arm: right is faster, down is sooner."""
    marks = ticks(0, max(point.rows_per_s.high or point.rows_per_s.value for point in points))
    rises = ticks(0, max(point.latency_ms.p95 for point in points))
    colours = _by_series(points)
    named, deep = legend(56, 14, list(colours.items()), _WIDTH - 70)
    x = Scale(0, marks[-1], 56, _WIDTH - 40)
    y = Scale(0, rises[-1], 350 + deep, 34 + deep)
    shapes = [named, across(x, marks, y.end, y.start, "rows per second")]
    shapes.append(up(y, rises, x.start, x.end, "p95 latency, ms (dots; p50 below, small)"))
    grouped = _grouped(points)
    for series, colour in colours.items():
        mine = [point for point, (name, _) in zip(points, grouped, strict=True) if name == series]
        shapes.append(path([(x(p.rows_per_s.value), y(p.latency_ms.p95)) for p in mine], colour))
        marks_of = [mark for name, mark in grouped if name == series]
        for point, mark in zip(mine, marks_of, strict=True):
            at, high, low = (x(point.rows_per_s.value), y(point.latency_ms.p95), y(point.latency_ms.p50))
            shapes.append(line(at, high, at, low, colour, 1, "stroke-dasharray='2 3'"))
            shapes.append(whisker(x, high, point.rows_per_s.low, point.rows_per_s.high, colour))
            shapes.append(dot(at, low, colour, f"p50 {point.latency_ms.p50:.2f} ms", 2.5))
            shapes.append(dot(at, high, colour, f"{point.name}: p95 {point.latency_ms.p95:.2f} ms"))
            shapes.append(text(at + 7, high - 7, mark, colour=colour))
    return svg(_WIDTH, y.start + 46, "p95 latency against throughput", shapes)


def stacked_latency(points: Sequence[Point]) -> str:
    """Where the mean latency of every point went."""
    names, left = _labels(points)
    named, deep = legend(left, 14, list(_PHASES.items()), _WIDTH - left)
    marks = ticks(0, max(point.latency_ms.mean for point in points))
    x = Scale(0, marks[-1], left, _WIDTH - 60)
    top, bottom = 10 + deep, 10 + deep + _ROW * len(points)
    shapes = [named, across(x, marks, top - 4, bottom, "mean latency, ms")]
    for place, (point, name) in enumerate(zip(points, names, strict=True)):
        y, begun = top + _ROW * place, 0.0
        shapes.append(text(left - 8, y + 15, name, anchor="end"))
        for phase, colour in _PHASES.items():
            ms = getattr(point.split_ms, phase)
            shapes.append(
                box(x(begun), y + 4, x(begun + ms) - x(begun), _ROW - 8, colour, f"{phase} {ms:.2f} ms")
            )
            begun += ms
        shapes.append(text(x(begun) + 6, y + 16, f"{point.latency_ms.mean:.3g}"))
    return svg(_WIDTH, bottom + 44, "mean latency of every point by where it went", shapes)


def batch_sizes(points: Sequence[Point]) -> str:
    """For every point, the share of rows that went through the network in batches of each size."""
    sizes = sorted({size.rows for point in points for size in point.batches})
    across_, wide, high = 5, _WIDTH / 5, 118.0
    shapes = []
    for place, point in enumerate(points):
        left, top = wide * (place % across_) + 10, high * (place // across_)
        rows = sum(size.rows * size.executions for size in point.batches) or 1
        for line_, words in enumerate(_two_lines(f"{point.arm} {point.demand}")):
            shapes.append(text(left, top + 12 + 12 * line_, words, more="font-size='11'"))
        slot = min(26.0, (wide - 24) / len(sizes))
        shapes.append(line(left, top + 92, left + slot * len(sizes), top + 92, FAINT))
        for column, size in enumerate(sizes):
            share = sum(each.rows * each.executions for each in point.batches if each.rows == size) / rows
            tall = 52 * share
            hint = f"{share:.1%} of the rows in batches of {size}"
            shapes.append(box(left + slot * column + 1, top + 92 - tall, slot - 2, tall, COLOURS[0], hint))
            if slot > 12 or column % 2 == 0:
                middle = left + slot * (column + 0.5)
                small = "font-size='10'"
                shapes.append(text(middle, top + 104, str(size), anchor="middle", colour=FAINT, more=small))
    height = high * -(-len(points) // across_)
    return svg(_WIDTH, height, "share of rows by the size of the batch they were executed in", shapes)


def ratios(pairs: Sequence[Pair]) -> str:
    """Every pair's ratio with its interval, around the line where nothing changed."""
    left = min(330.0, 30 + 6.6 * max(len(pair.name) for pair in pairs))
    ends = [value for pair in pairs for value in (pair.speed.low, pair.speed.high, pair.speed.value) if value]
    marks = ticks(min(0.9, *ends), max(1.1, *ends))
    x = Scale(marks[0], marks[-1], left, _WIDTH - 60)
    bottom = 10 + _ROW * len(pairs)
    shapes = [across(x, marks, 6, bottom, "speed now ÷ before, with 95 % interval")]
    shapes.append(line(x(1), 6, x(1), bottom, INK, 1.5))
    for place, pair in enumerate(pairs):
        y = 10 + _ROW * (place + 0.5)
        colour = {"slower": COLOURS[6], "faster": COLOURS[2]}.get(pair.verdict, FAINT)
        shapes.append(text(left - 8, y + 4, pair.name, anchor="end"))
        shapes.append(whisker(x, y, pair.speed.low, pair.speed.high, colour))
        shapes.append(dot(x(pair.speed.value), y, colour, f"{pair.speed:.3f}", 5))
        shapes.append(text(_WIDTH - 54, y + 4, pair.verdict, colour=colour))
    return svg(_WIDTH, bottom + 44, "speed of every pair, now over before", shapes)


def _grouped(points: Sequence[Point]) -> list[tuple[str, str]]:
    """For every point, the line it belongs to and what tells it apart there.

    Where there are more arms than colours, arms whose names differ in a number alone are one line.
    """
    plain = [(_series(point), _level(point)) for point in points]
    if len({series for series, _ in plain}) <= len(COLOURS):
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
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def _level(point: Point) -> str:
    return f"c={point.demand.level:g}" if point.demand.arrivals == "closed" else f"{point.demand.level:g}/s"


def _labels(points: Sequence[Point]) -> tuple[list[str], float]:
    """A name a point, and the room that they take to the left of a chart."""
    names = [point.name for point in points]
    return names, min(360.0, 24 + 6.4 * max(len(name) for name in names))


def _two_lines(words: str, most: int = 27) -> list[str]:
    if len(words) <= most:
        return [words]
    cut = words.rfind(" ", 0, most)
    cut = cut if cut > 0 else most
    return [words[:cut], words[cut:].strip()[:most]]
