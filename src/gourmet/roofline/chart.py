"""The chart: each layer by its intensity and the speed that it can reach, under the machine's roof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gourmet.reports import chart
from gourmet.reports.chart import Series, lines
from gourmet.roofline.analysis import Roofline

_SMALLEST, _LARGEST = 2.5, 13.0
_MOST_KINDS: Final = 5
_COUNTS: Final = (
    "operations for each byte read or written; the area of a dot is its share of the time",
    "operations a second that it can reach",
)


def draw(title: str, rooflines: Sequence[Roofline]) -> chart.Drawing:
    """One panel a machine, one under another."""
    panels = [
        (f"batch {one.batch}, on {one.machine.name}: {one.machine.bandwidth / 1e9:,.3g} GB/s", _panel(one))
        for one in rooflines
    ]
    return chart.stacked(f"Roofline of {title}", panels)


def _panel(found: Roofline) -> chart.Drawing:
    # Layers that compute nothing have no place on a logarithmic axis; their time is in the table.
    shown = sorted(
        (one for one in found.layers if one.operations and one.bytes), key=lambda one: -one.seconds
    )
    machine = found.machine
    roofs = {"fp32": machine.fp32, "int8": machine.int8}
    if not any(one.quantized for one in shown):
        del roofs["int8"]
    ridges = [roof / machine.bandwidth for roof in roofs.values()]
    lowest = min(*ridges, *(one.intensity for one in shown))
    highest = 2 * max(*ridges, *(one.intensity for one in shown))
    drawn = []
    for (name, roof), ridge, ink in zip(roofs.items(), ridges, (chart.INK, chart.FAINT), strict=False):
        corners = [(lowest, lowest * machine.bandwidth), (ridge, roof), (highest, roof)]
        drawn.append(Series(f"{name}: {roof / 1e9:,.0f} G operations/s", corners, ink))
    seconds: dict[str, float] = {}
    for one in shown:
        seconds[one.kind] = seconds.get(one.kind, 0.0) + one.seconds
    # A colour for each of the kinds of layers that take most of the time.
    kinds = sorted(seconds, key=lambda kind: -seconds[kind])[:_MOST_KINDS]
    for kind, colour in zip([*kinds, "others"], chart.COLOURS, strict=False):
        mine = [one for one in shown if (one.kind if one.kind in kinds else "others") == kind]
        radii = [
            _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(one.seconds / shown[0].seconds) for one in mine
        ]
        hints = [
            f"{one.name}: {one.intensity:.3g} operations/byte, {one.seconds / found.seconds:.1%} of the time"
            for one in mine
        ]
        places = [(one.intensity, one.operations / one.seconds) for one in mine]
        drawn.append(Series(kind if mine else "", places, colour, joined=False, radii=radii, hints=hints))
    return lines(drawn, machine.name, _COUNTS, size=(760.0, 460.0), log=True)
