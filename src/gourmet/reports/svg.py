"""A little of SVG: axes with round numbers, marks and text, as much as the reports need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

# Distinct for the colour-blind too (after Okabe and Ito), and dark enough for thin lines.
COLOURS: Final = ("#1b5e9b", "#d55e00", "#00795a", "#8c4a86", "#b8860b", "#3a9ad9", "#b3261e", "#5f6368")
INK: Final = "#222"
FAINT: Final = "#666"
GRID: Final = "#e6e6e6"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / about))
    for factor in (1, 2, 2.5, 5, 10):
        if span / (step * factor) <= about:
            step *= factor
            break
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(step * at, 10) for at in range(first, max(last, first + 1) + 1)]


def decades(low: float, high: float) -> list[float]:
    """The powers of ten from at or below `low` to at or above `high`."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True)
class Scale:
    """From values to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


class LogScale(Scale):
    """The same, where each power of ten is as wide as the next."""

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


class Drawing(str):
    """A whole SVG, which knows its size so that several can stand below one another."""

    __slots__ = ("height", "width")
    width: float
    height: float


def picture(width: float, height: float, label: str, shapes: Sequence[str]) -> Drawing:
    """A picture that says to a screen reader what it shows."""
    drawing = Drawing(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' "
        f"width='{width:.0f}' height='{height:.0f}' role='img' font-family='system-ui,sans-serif' "
        f"font-size='12'><title>{escape(label)}</title>{''.join(shapes)}</svg>"
    )
    drawing.width, drawing.height = width, height
    return drawing


def stacked(title: str, drawings: Sequence[tuple[str, Drawing]], gap: float = 34) -> Drawing:
    """Drawings below one another, each under its heading, on white for readers in the dark."""
    shapes = ["<rect width='100%' height='100%' fill='#fff'/>", text(12, 26, title, more="font-size='15'")]
    down, width = 26 + gap, 0.0
    for heading, drawing in drawings:
        shapes.append(text(12, down, heading, more="font-weight='bold'"))
        shapes.append(drawing.replace("<svg ", f"<svg y='{down + 8:.0f}' ", 1))
        down, width = down + 8 + drawing.height + gap, max(width, drawing.width)
    return picture(width, down - gap, title, shapes)


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = INK, more: str = "") -> str:
    return f"<text {_at(x=x, y=y)} text-anchor='{anchor}' fill='{colour}' {more}>{escape(words)}</text>"


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = GRID, width: float = 1, more: str = ""
) -> str:
    return f"<line {_at(x1=x1, y1=y1, x2=x2, y2=y2)} stroke='{colour}' stroke-width='{width}' {more}/>"


def box(x: float, y: float, width: float, height: float, colour: str, hint: str = "") -> str:
    size = _at(x=x, y=y, width=max(0.0, width), height=max(0.0, height))
    return f"<rect {size} fill='{colour}'>{_hint(hint)}</rect>"


def dot(x: float, y: float, colour: str, hint: str = "", radius: float = 4) -> str:
    return f"<circle {_at(cx=x, cy=y, r=radius)} fill='{colour}'>{_hint(hint)}</circle>"


def path(points: Sequence[tuple[float, float]], colour: str, width: float = 2) -> str:
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline points='{where}' fill='none' stroke='{colour}' stroke-width='{width}'/>"


def _at(**places: float) -> str:
    return " ".join(f"{name}='{value:.1f}'" for name, value in places.items())


def _hint(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


def whisker(x: Scale, y: float, low: float | None, high: float | None, colour: str = INK) -> str:
    """A horizontal interval; nothing where it is not known."""
    if low is None or high is None:
        return ""
    left, right = x(max(low, x.low)), x(min(high, x.high))
    ends = "".join(line(at, y - 4, at, y + 4, colour, 1.5) for at in (left, right))
    return line(left, y, right, y, colour, 1.5) + ends


def across(x: Scale, marks: Sequence[float], top: float, bottom: float, title: str) -> str:
    """Vertical grid lines with their numbers under them, and what they count."""
    drawn = [
        line(x(mark), top, x(mark), bottom)
        + text(x(mark), bottom + 16, f"{mark:g}", anchor="middle", colour=FAINT)
        for mark in marks
    ]
    return "".join(drawn) + text((x.start + x.end) / 2, bottom + 34, title, anchor="middle", colour=FAINT)


def up(y: Scale, marks: Sequence[float], left: float, right: float, title: str) -> str:
    """Horizontal grid lines with their numbers beside them, and what they count."""
    drawn = [
        line(left, y(mark), right, y(mark))
        + text(left - 6, y(mark) + 4, f"{mark:g}", anchor="end", colour=FAINT)
        for mark in marks
    ]
    return "".join(drawn) + text(left, y.end - 12, title, colour=FAINT)


def legend(x: float, y: float, entries: Sequence[tuple[str, str]], width: float) -> tuple[str, float]:
    """Coloured names in as many lines as they need, and the height of them."""
    drawn, at, down = [], x, y
    for name, colour in entries:
        wide = 24 + 6.6 * len(name)
        if at + wide > x + width and at > x:
            at, down = x, down + 18
        drawn.append(box(at, down - 9, 10, 10, colour) + text(at + 14, down, name))
        at += wide
    return "".join(drawn), down - y + 18
