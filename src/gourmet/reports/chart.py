"""The charts that several reports draw: bars with intervals, lines, dots and columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gourmet.reports import svg

# Two of them stand side by side on a page.
WIDTH: Final = 570.0
_ROW: Final = 36.0
_LEFT: Final = 56.0

Range = tuple[float, float]


@dataclass(frozen=True)
class Bar:
    """A horizontal bar, of one colour or made of `parts` (length, colour, hint), with its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: str = svg.COLOURS[0]
    says: str = ""
    hint: str = ""
    parts: Sequence[tuple[float, str, str]] = ()


def bars(
    shown: Sequence[Bar],
    title: str,
    counts: str,
    *,
    most: float | None = None,
    around: float | None = None,
    colours: Mapping[str, str] | None = None,
    width: float = WIDTH,
) -> svg.Drawing:
    """A bar a row under its name, from 0, or a dot beside a line `around`; `colours` is the legend above."""
    named, deep = svg.legend(14, 14, list(colours.items()), width - 14) if colours else ("", 0.0)
    ends = [end for bar in shown for end in (bar.value, bar.low, bar.high) if end is not None]
    low, high = (0.0, max(ends)) if around is None else (min(0.9 * around, *ends), max(1.1 * around, *ends))
    marks = svg.ticks(low, most or high)
    x = svg.Scale(marks[0], marks[-1], 14, width - 60)
    top, bottom = 10 + deep, 10 + deep + _ROW * len(shown)
    shapes = [named, svg.across(x, marks, top - 4, bottom, counts)]
    if around is not None:
        shapes.append(svg.line(x(around), top - 4, x(around), bottom, svg.INK, 1.5))
    for place, bar in enumerate(shown):
        y, begun = top + _ROW * place, 0.0
        shapes.append(svg.text(x.start + 2, y + 11, bar.name))
        for length, colour, hint in bar.parts or [(bar.value, bar.colour, bar.hint)]:
            if around is not None:
                shapes.append(svg.dot(x(length), y + 23, colour, hint, 5))
            else:
                wide = x(begun + length) - x(begun)
                shapes.append(svg.box(x(begun), y + 15, wide, _ROW - 20, colour, hint))
                begun += length
        shapes.append(svg.whisker(x, y + 23, bar.low, bar.high))
        end = min(x(max(bar.value, bar.high or 0.0)), x.end)
        shapes.append(svg.text(end + 6, y + 27, bar.says or f"{bar.value:.4g}"))
    return svg.picture(width, bottom + 44, title, shapes)


@dataclass(frozen=True)
class Series:
    """Points that belong together: joined by a line, shown as dots, or both."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = svg.COLOURS[0]
    joined: bool = True
    # Per point; an empty list draws no dots.
    radii: Sequence[float] = ()
    hints: Sequence[str] = ()
    says: Sequence[str] = ()


def lines(
    shown: Sequence[Series],
    title: str,
    counts: tuple[str, str],
    *,
    x_range: Range | None = None,
    y_range: Range | None = None,
    size: tuple[float, float] = (WIDTH, 340.0),
    marks: Sequence[tuple[float, str]] = (),
    log: bool = False,
) -> svg.Drawing:
    """Lines and dots with words beside them over two axes; `counts` says what each counts, across and up.

    `marks` are places across where something begins, with its name; `log` is of both axes.
    """
    width, height = size
    ticks, scale = (svg.decades, svg.LogScale) if log else (svg.ticks, svg.Scale)
    at_x = ticks(*(x_range or _around(x for series in shown for x, _ in series.points)))
    at_y = ticks(*(y_range or _around(y for series in shown for _, y in series.points)))
    entries = [(series.name, series.colour) for series in shown if series.name]
    named, deep = svg.legend(_LEFT, 14, entries, width - _LEFT) if len(entries) > 1 else ("", 0.0)
    x = scale(at_x[0], at_x[-1], _LEFT, width - 24)
    y = scale(at_y[0], at_y[-1], height - 46, 34 + deep)
    shapes = [
        named,
        svg.across(x, at_x, y.end, y.start, counts[0]),
        svg.up(y, at_y, x.start, x.end, counts[1]),
    ]
    for at, name in marks:
        shapes.append(svg.line(x(at), y.end, x(at), y.start, svg.FAINT, 1, "stroke-dasharray='3 3'"))
        shapes.append(svg.text(x(at) + 3, y.end + 12, name, colour=svg.FAINT))
    for series in shown:
        where = [(x(across_), y(up_)) for across_, up_ in series.points]
        if series.joined and len(where) > 1:
            shapes.append(svg.path(where, series.colour))
        hints = series.hints or [""] * len(where)
        for at_dot, radius, hint in zip(where, series.radii, hints, strict=False):
            shapes.append(svg.dot(*at_dot, series.colour, hint, radius))
        for (left, down), words in zip(where, series.says, strict=False):
            shapes.append(svg.text(left + 7, down - 7, words, colour=series.colour))
    return svg.picture(width, height, title, shapes)


def columns(
    counts: Sequence[float],
    title: str,
    says: tuple[str, str],
    *,
    begins: float = 0.0,
    step: float = 1.0,
    mark: float | None = None,
    size: tuple[float, float] = (360.0, 260.0),
) -> svg.Drawing:
    """A histogram: the outline of columns of width `step` from `begins` on, and a dashed line at `mark`."""
    steps = [(begins + step * at, count) for place, count in enumerate(counts) for at in (place, place + 1)]
    outline = [(begins, 0.0), *steps, (steps[-1][0], 0.0)]
    marks = [] if mark is None else [(mark, "")]
    return lines([Series("", outline)], title, says, y_range=(0, max(counts)), size=size, marks=marks)


def _around(values: Iterable[float]) -> Range:
    found = list(values)
    return (min(found), max(found)) if found else (0.0, 1.0)
