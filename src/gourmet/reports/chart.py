"""The charts that several reports draw, as SVGs: bars with intervals, lines, dots and columns.

Where everything stands is computed here; the shapes are in the templates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gourmet.reports.page import render

# Distinct for the colour-blind too (after Okabe and Ito), and dark enough for thin lines.
COLOURS: Final = ("#1b5e9b", "#d55e00", "#00795a", "#8c4a86", "#b8860b", "#3a9ad9", "#b3261e", "#5f6368")
INK: Final = "#222"
FAINT: Final = "#666"
# Two of them stand side by side on a page.
WIDTH: Final = 570.0
_ROW: Final = 36.0
_LEFT: Final = 56.0
_GAP: Final = 34.0

Range = tuple[float, float]


class Drawing(str):
    """A whole SVG, which knows its size so that several can stand below one another."""

    __slots__ = ("height", "width")
    width: float
    height: float


def _drawn(template: str, width: float, height: float, title: str, **given: Any) -> Drawing:
    drawing = Drawing(render(f"reports/{template}", width=width, height=height, title=title, **given))
    drawing.width, drawing.height = width, height
    return drawing


def stacked(title: str, drawings: Sequence[tuple[str, Drawing]]) -> Drawing:
    """Drawings below one another, each under its heading."""
    tops = [26 + _GAP]
    for _, drawing in drawings:
        tops.append(tops[-1] + 8 + drawing.height + _GAP)
    width = max(drawing.width for _, drawing in drawings)
    shown = [(top, *each) for top, each in zip(tops, drawings, strict=False)]
    return _drawn("stacked.svg", width, tops[-1] - _GAP, title, shown=shown)


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers from at or below `low` to at or above `high`."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 5))
    for factor in (1, 2, 2.5, 5, 10):
        if span / (step * factor) <= 5:
            step *= factor
            break
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(step * at, 10) for at in range(first, max(last, first + 1) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """The powers of ten from at or below `low` to at or above `high`."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True)
class Scale:
    """From values to pixels along one axis, that has `marks`; on a logarithmic one decades are as wide."""

    marks: Sequence[float]
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        share = math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Bar:
    """A horizontal bar, of one colour or made of `parts` (length, colour, hint), with its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: str = COLOURS[0]
    says: str = ""
    hint: str = ""
    parts: Sequence[tuple[float, str, str]] = ()


def bars(
    shown: Sequence[Bar],
    title: str,
    counts: str,
    *,
    end: float | None = None,
    around: float | None = None,
    colours: Mapping[str, str] | None = None,
) -> Drawing:
    """A bar a row under its name, from 0, or a dot beside a line `around`; `colours` is the legend above."""
    named, deep = _legend(list((colours or {}).items()), 14, WIDTH)
    ends = [end for bar in shown for end in (bar.value, bar.low, bar.high) if end is not None]
    low, high = (0.0, max(ends)) if around is None else (min(0.9 * around, *ends), max(1.1 * around, *ends))
    x = Scale(ticks(low, end or high), 14, WIDTH - 60)
    top, bottom = 10 + deep, 10 + deep + _ROW * len(shown)
    rows = [(top + _ROW * place, bar) for place, bar in enumerate(shown)]
    given = {"x": x, "top": top - 4, "bottom": bottom, "named": named, "counts": counts}
    return _drawn("bars.svg", WIDTH, bottom + 44, title, around=around, rows=rows, **given)


@dataclass(frozen=True)
class Series:
    """Points that belong together: joined by a line, shown as dots, or both."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    joined: bool = True
    # Each empty, or of every point; without radii there are no dots.
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
) -> Drawing:
    """Lines and dots with words beside them over two axes; `counts` says what each counts, across and up.

    `marks` are places across where something begins, with its name; `log` is of both axes.
    """
    width, height = size
    numbers = _decades if log else ticks
    across, up = zip(*(point for series in shown for point in series.points), strict=True)
    at_x = numbers(*(x_range or (min(across), max(across))))
    at_y = numbers(*(y_range or (min(up), max(up))))
    entries = [(series.name, series.colour) for series in shown if series.name]
    named, deep = _legend(entries if len(entries) > 1 else [], _LEFT, width)
    x = Scale(at_x, _LEFT, width - 24, log)
    y = Scale(at_y, height - 46, 34 + deep, log)
    given = {"x": x, "y": y, "named": named, "counts": counts, "marks": marks}
    return _drawn("lines.svg", width, height, title, shown=shown, **given)


def columns(
    counts: Sequence[float],
    title: str,
    says: tuple[str, str],
    *,
    begins: float = 0.0,
    step: float = 1.0,
    mark: float | None = None,
) -> Drawing:
    """A histogram: the outline of columns of width `step` from `begins` on, and a dashed line at `mark`."""
    steps = [(begins + step * at, count) for place, count in enumerate(counts) for at in (place, place + 1)]
    outline = [(begins, 0.0), *steps, (steps[-1][0], 0.0)]
    marks = [] if mark is None else [(mark, "")]
    return lines([Series("", outline)], title, says, y_range=(0, max(counts)), size=(360, 260), marks=marks)


def matrix(
    rows: Mapping[str, Sequence[float]], columns: Sequence[str], title: str, says: tuple[str, str]
) -> Drawing:
    """Shares from 0 to 1 in a row for each name, the darker the more, in percent."""
    cell, left, top = 36.0, 130.0, 130.0
    width, height = left + cell * len(columns) + 60, top + cell * len(rows) + 12
    given = {"cell": cell, "left": left, "top": top, "rows": rows, "columns": columns, "says": says}
    return _drawn("matrix.svg", width, height, title, colour=COLOURS[0], **given)


def _legend(
    entries: Sequence[tuple[str, str]], left: float, right: float
) -> tuple[list[tuple[float, float, str, str]], float]:
    """Where each name stands with its colour, in as many lines as they need, and the height of them."""
    placed, x, y = [], left, 14.0
    for name, colour in entries:
        wide = 24 + 6.6 * len(name)
        if x + wide > right and x > left:
            x, y = left, y + 18
        placed.append((x, y, name, colour))
        x += wide
    return placed, y + 4 if placed else 0.0
