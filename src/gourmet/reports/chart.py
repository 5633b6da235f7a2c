"""Draw charts as SVGs: bars with intervals, lines, dots and histograms.

This module computes the positions; the templates draw the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gourmet.reports.page import render

# Distinct for colour-blind readers too (after Okabe and Ito), and dark enough for thin lines.
COLOURS: Final = ("#1b5e9b", "#d55e00", "#00795a", "#8c4a86", "#b8860b", "#3a9ad9", "#b3261e", "#5f6368")
FAINT: Final = "#666"
# Two charts fit side by side on a page.
WIDTH: Final = 570.0
_ROW: Final = 36.0
_LEFT: Final = 56.0
_GAP: Final = 34.0

Range = tuple[float, float]


class Drawing(str):
    """A complete SVG with its size, so that several can be stacked."""

    __slots__ = ("height", "width")
    width: float
    height: float


def _drawn(template: str, width: float, height: float, title: str, **variables: Any) -> Drawing:
    drawing = Drawing(render(f"reports/{template}", width=width, height=height, title=title, **variables))
    drawing.width, drawing.height = width, height
    return drawing


def stacked(title: str, drawings: Sequence[tuple[str, Drawing]]) -> Drawing:
    """Stack drawings below one another, each under its heading."""
    tops = [26 + _GAP]
    for _, drawing in drawings:
        tops.append(tops[-1] + 8 + drawing.height + _GAP)
    width = max(24 + 8.0 * len(title), *(drawing.width for _, drawing in drawings))
    shown = [(top, *drawing) for top, drawing in zip(tops, drawings, strict=False)]
    return _drawn("stacked.svg", width, tops[-1] - _GAP, title, shown=shown)


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers that span `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 5))
    for factor in (1, 2, 2.5, 5, 10):
        if span / (step * factor) <= 5:
            step *= factor
            break
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(step * at, 10) for at in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True)
class Scale:
    """Map values to pixels on an axis from the first to the last of its `marks`."""

    marks: Sequence[float]
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        return self.start + (value - low) / (high - low) * (self.end - self.start)


@dataclass(frozen=True)
class LogScale(Scale):
    """Map positive values to pixels on a logarithmic axis; others lie at its nearest end."""

    def __call__(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Bar:
    """A horizontal bar with its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: str = COLOURS[0]
    says: str = ""
    hint: str = ""


def bars(
    shown: Sequence[Bar],
    title: str,
    counts: str,
    *,
    end: float | None = None,
    colours: Mapping[str, str] | None = None,
) -> Drawing:
    """Draw a bar from 0 in each row; `colours` is the legend."""
    width = max(WIDTH, *(24 + 6.6 * len(bar.name) for bar in shown))
    named, legend_height = _legend(list((colours or {}).items()), 14, width)
    ends = [end for bar in shown for end in (bar.value, bar.low, bar.high) if end is not None]
    x = Scale(ticks(0.0, end or max(ends)), 14, width - 60)
    top, bottom = 10 + legend_height, 10 + legend_height + _ROW * len(shown)
    rows = [(top + _ROW * row, bar) for row, bar in enumerate(shown)]
    axis = {"x": x, "top": top - 4, "bottom": bottom, "named": named, "counts": counts}
    return _drawn("bars.svg", width, bottom + 44, title, rows=rows, **axis)


@dataclass(frozen=True)
class Span:
    """A range of values, with the value that it is about if there is one."""

    name: str
    low: float
    high: float
    value: float | None = None
    colour: str = COLOURS[0]
    says: str = ""


def spans(shown: Sequence[Span], title: str, counts: str, *, around: float) -> Drawing:
    """Draw ranges on a logarithmic axis; an arrow shows where one goes on outside.

    The axis has every end that is within a factor of 30 of the value `around`.
    """
    ends = [end for span in shown for end in (span.low, span.high) if end > 0]
    middle = around if around > 0 else min(ends, default=1.0)
    near = [end for end in (*ends, middle) if middle / 30 <= end <= 30 * middle]
    x = LogScale(_log_ticks(min(near) / 1.5, max(near) * 1.5), 14, WIDTH - 130)
    rows = [(10 + _ROW * row, span) for row, span in enumerate(shown)]
    bottom = 10 + _ROW * len(shown)
    return _drawn("spans.svg", WIDTH, bottom + 44, title, rows=rows, x=x, top=6, bottom=bottom, counts=counts)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return the 1, 2 and 5 of each power of ten that `low` to `high` needs."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ladder = [round(factor * 10.0**power, 12) for power in powers for factor in (1, 2, 5)]
    first = max(place for place, mark in enumerate(ladder) if mark <= low)
    last = min(place for place, mark in enumerate(ladder) if mark >= high)
    return ladder[first : last + 1]


@dataclass(frozen=True)
class Series:
    """Points that belong together: joined by a line, shown as dots, or both."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    joined: bool = True
    # Either empty or one for each point. Without radii, no dots are drawn.
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
) -> Drawing:
    """Draw lines and dots with words beside them; `counts` are the titles of the x and y axis.

    `marks` are positions on the x axis with their names.
    """
    width, height = size
    across, up = zip(*(point for series in shown for point in series.points), strict=True)
    at_x = ticks(*(x_range or (min(across), max(across))))
    at_y = ticks(*(y_range or (min(up), max(up))))
    entries = [(series.name, series.colour) for series in shown if series.name]
    named, legend_height = _legend(entries if len(entries) > 1 else [], _LEFT, width)
    x = Scale(at_x, _LEFT, width - 24)
    y = Scale(at_y, height - 46, 34 + legend_height)
    axes = {"x": x, "y": y, "named": named, "counts": counts, "marks": marks}
    return _drawn("lines.svg", width, height, title, shown=shown, **axes)


def matrix(
    rows: Mapping[str, Sequence[float]], columns: Sequence[str], title: str, says: tuple[str, str]
) -> Drawing:
    """Draw shares from 0 to 1 in percent, a row for each name; higher shares are darker."""
    cell, left, top = 36.0, 130.0, 130.0
    width, height = left + cell * len(columns) + 60, top + cell * len(rows) + 12
    layout = {"cell": cell, "left": left, "top": top, "rows": rows, "columns": columns, "says": says}
    return _drawn("matrix.svg", width, height, title, colour=COLOURS[0], **layout)


def _legend(
    entries: Sequence[tuple[str, str]], left: float, right: float
) -> tuple[list[tuple[float, float, str, str]], float]:
    """Return the position and colour of each name, in as many lines as needed, and the legend's height."""
    placed, x, y = [], left, 14.0
    for name, colour in entries:
        width = 24 + 6.6 * len(name)
        if x + width > right and x > left:
            x, y = left, y + 18
        placed.append((x, y, name, colour))
        x += width
    return placed, y + 4 if placed else 0.0
