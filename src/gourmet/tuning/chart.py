"""The Pareto chart: every point that was measured, and the front that nothing beats in both ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gourmet.measure.results import Point
from gourmet.reports import svg
from gourmet.tuning.results import PRESENT, Tuning

_WIDTH: Final = 880.0
_HIGH: Final = 380.0
# What waits far above the front would press it flat against the bottom.
_SHOWN: Final = 2.5
_OTHER, _LIMIT = "#9aa0a6", "#b3261e"
_MINE, _PRESENT = svg.COLOURS[2], svg.COLOURS[1]


def front(points: Iterable[Point]) -> list[Point]:
    """The points for which no other has both more rows a second and a lower p95, by throughput."""
    found: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.rows_per_s.value, each.latency_ms.p95)):
        if not found or point.latency_ms.p95 < found[-1].latency_ms.p95:
            found.append(point)
    return found[::-1]


def pareto(tuning: Tuning) -> str:
    """Throughput to the right, p95 upwards: the closer to the bottom right, the better."""
    points = [point for trial in tuning.trials for point in trial.points]
    duel = [tuning.duel.ours, tuning.duel.theirs] if tuning.duel else []
    best = front(points)
    limit = tuning.goal.p95_ms
    most = _SHOWN * max([point.latency_ms.p95 for point in [*best, *duel]] + ([limit] if limit else []))
    shown = [point for point in points if point.latency_ms.p95 <= most]
    marks = svg.ticks(0, max(point.rows_per_s.value for point in [*points, *duel]))
    rises = svg.ticks(0, max(point.latency_ms.p95 for point in [*shown, *duel]) * 1.02)
    if limit and limit > rises[-1]:
        rises = svg.ticks(0, limit)
    entries = [("tried", _OTHER), ("present", _PRESENT), (tuning.best, _MINE)]
    if tuning.best == PRESENT:
        entries.pop()
    named, deep = svg.legend(60, 14, entries, _WIDTH - 70)
    x = svg.Scale(0, marks[-1], 60, _WIDTH - 40)
    y = svg.Scale(0, rises[-1], _HIGH + deep, 34 + deep)
    shapes = [named]
    if limit is not None:
        shapes.append(svg.box(x.start, y(limit), x.end - x.start, y.start - y(limit), "#eef6f2"))
    shapes += [
        svg.across(x, marks, y.end, y.start, "rows per second"),
        svg.up(y, rises, x.start, x.end, "p95, ms"),
    ]
    if limit is not None:
        shapes.append(svg.line(x.start, y(limit), x.end, y(limit), _LIMIT, 1.5, "stroke-dasharray='6 4'"))
        shapes.append(
            svg.text(x.start + 6, y(limit) - 6, f"goal: p95 of at most {limit:g} ms", colour=_LIMIT)
        )
    shapes.append(svg.path([(x(p.rows_per_s.value), y(p.latency_ms.p95)) for p in best], svg.INK, 1.2))
    for point in sorted(shown, key=lambda each: each.arm in (tuning.best, PRESENT)):
        shapes.append(_mark(point, x, y, tuning.best))
    shapes += _duel(tuning, x, y)
    if hidden := len(points) - len(shown):
        longest = max(point.latency_ms.p95 for point in points)
        words = f"{hidden} points with a longer p95, of up to {longest:.3g} ms, not shown"
        shapes.append(svg.text(x.end, y.end - 12, words, anchor="end", colour=svg.FAINT))
    return svg.picture(
        _WIDTH, y.start + 46, f"p95 against throughput of every config of {tuning.model}", shapes
    )


def _mark(point: Point, x: svg.Scale, y: svg.Scale, best: str) -> str:
    colour = {best: _MINE, PRESENT: _PRESENT}.get(point.arm, _OTHER)
    at, high = x(point.rows_per_s.value), y(point.latency_ms.p95)
    hint = f"{point.name}: {point.rows_per_s.value:.4g} rows/s, p95 {point.latency_ms.p95:.3g} ms"
    drawn = svg.dot(at, high, colour, hint, 3 if colour == _OTHER else 4.5)
    level = f"c={point.demand.level:g}"
    return drawn + (svg.text(at + 7, high - 6, level, colour=colour) if colour != _OTHER else "")


def _duel(tuning: Tuning, x: svg.Scale, y: svg.Scale) -> Sequence[str]:
    """The turns against each other: rings, with the interval of their throughput."""
    if tuning.duel is None:
        return []
    shapes = []
    for point, colour in ((tuning.duel.theirs, _PRESENT), (tuning.duel.ours, _MINE)):
        at, high = x(point.rows_per_s.value), y(point.latency_ms.p95)
        shapes.append(svg.whisker(x, high, point.rows_per_s.low, point.rows_per_s.high, colour))
        shapes.append(
            f"<circle cx='{at:.1f}' cy='{high:.1f}' r='8' fill='none' stroke='{colour}' stroke-width='2'>"
            f"<title>{point.turns} turns: {point.rows_per_s:.4g} rows/s</title></circle>"
        )
    return shapes
