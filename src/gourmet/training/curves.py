"""A run's curves as an SVG: loss, and every measure that is a share, over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gourmet.reports.chart import Series, lines
from gourmet.reports.svg import COLOURS, Drawing

_NOT_CURVES: Final = ("epoch", "rate", "seconds")
_SIZE: Final = (720.0, 340.0)


def curves(epochs: Sequence[dict[str, Any]]) -> Drawing:
    """Draw `epochs`. Shares have the axis 0 to 1, a loss its own range; where a phase begins is marked."""
    last = epochs[-1] if epochs else {}
    names = [key for key, value in last.items() if key not in _NOT_CURVES and isinstance(value, float)]
    shown = [_series(name, epochs, COLOURS[place % len(COLOURS)]) for place, name in enumerate(names)]
    phases = [str(each.get("phase", "")) for each in epochs]
    begins = [
        (float(each["epoch"]), phase)
        for each, phase, before in zip(epochs, phases, ["", *phases], strict=False)
        if phase != before
    ]
    return lines(
        shown,
        "training curves",
        ("epoch", "share; a loss over its own range"),
        y_range=(0, 1),
        size=_SIZE,
        marks=begins,
    )


def _series(name: str, epochs: Sequence[dict[str, Any]], colour: str) -> Series:
    values = {float(each["epoch"]): float(each[name]) for each in epochs if name in each}
    low, high = (0.0, 1.0) if max(values.values()) <= 1.0 else (min(values.values()), max(values.values()))
    first, *_, last = (*values.values(), *values.values())
    return Series(
        f"{name.replace('_', ' ')}: {first:.3f} → {last:.3f}",
        [(epoch, (value - low) / ((high - low) or 1.0)) for epoch, value in values.items()],
        colour,
        radii=[2.5] * len(values),
        hints=[f"{value:.3f}" for value in values.values()],
    )
