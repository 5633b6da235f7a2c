"""The chart: each layer by its intensity and the speed that it can reach, under the machine's roof."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from gourmet.reports import svg
from gourmet.roofline.analysis import Roofline

_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 740.0, 32.0, 372.0
_SMALLEST, _LARGEST = 2.5, 13.0
_OTHER: Final = "#9aa0a6"


class _LogScale(svg.Scale):
    """Whole powers of ten around some values."""

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float) -> _LogScale:
        known = [math.log10(value) for value in values if 0 < value < math.inf]
        low, high = math.floor(min(known)), math.ceil(max(known) + 0.15)
        return cls(low, max(high, low + 1), start, end)

    def __call__(self, value: float) -> float:
        return super().__call__(math.log10(value))

    def marks(self) -> list[float]:
        return [10.0**power for power in range(int(self.low), int(self.high) + 1)]


def draw(title: str, rooflines: Sequence[Roofline]) -> svg.Drawing:
    """One panel a machine, one under another."""
    panels = [
        (f"batch {one.batch}, on {one.machine.name}: {one.machine.bandwidth / 1e9:,.3g} GB/s", _panel(one))
        for one in rooflines
    ]
    return svg.stacked(f"Roofline of {title}", panels)


def _panel(found: Roofline) -> svg.Drawing:
    # Layers that compute nothing have no place on a logarithmic axis; their time is in the table.
    shown = sorted((one for one in found.layers if one.operations), key=lambda one: -one.seconds)
    machine = found.machine
    roofs = {"fp32": machine.fp32}
    if any(one.quantized for one in shown):
        roofs["int8"] = machine.int8
    ridges = [roof / machine.bandwidth for roof in roofs.values()]
    x = _LogScale.around([*(one.intensity for one in shown), *ridges], _LEFT, _RIGHT)
    reached = [one.operations / one.seconds for one in shown]
    y = _LogScale.around([*reached, *roofs.values()], _BOTTOM, _TOP)
    across = "operations for each byte read or written; the area of a dot is its share of the time"
    shapes = [
        svg.across(x, x.marks(), _TOP, _BOTTOM, across),
        svg.up(y, y.marks(), _LEFT, _RIGHT, "operations a second that it can reach"),
    ]
    # The slope is common to all roofs, and starts where it enters the picture.
    low = max(10**x.low, 10**y.low / machine.bandwidth)
    for name, roof in roofs.items():
        corners = (low, roof / machine.bandwidth, 10**x.high)
        shapes.append(
            svg.path([(x(at), y(min(roof, at * machine.bandwidth))) for at in corners], svg.INK, 1.5)
        )
        label = f"{name}: {roof / 1e9:,.0f} G operations/s"
        shapes.append(svg.text(_RIGHT - 4, y(roof) - _LARGEST - 5, label, anchor="end"))
    seconds: dict[str, float] = {}
    for one in shown:
        seconds[one.kind] = seconds.get(one.kind, 0.0) + one.seconds
    # A colour for each of the kinds of layers that take most of the time.
    kinds = sorted(seconds, key=lambda kind: -seconds[kind])
    colours = dict(zip(kinds[:5], svg.COLOURS, strict=False))
    for one, speed in zip(shown, reached, strict=True):
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(one.seconds / shown[0].seconds)
        share = one.seconds / found.seconds
        hint = f"{one.name}: {one.intensity:.3g} operations/byte, {share:.1%} of the time"
        shapes.append(svg.dot(x(one.intensity), y(speed), colours.get(one.kind, _OTHER), hint, radius))
    entries = [*colours.items(), *([("others", _OTHER)] if len(kinds) > len(colours) else [])]
    # The legend reckons with narrow letters; a little air keeps wide ones apart.
    words, _ = svg.legend(_LEFT, _BOTTOM + 58, [(f"{kind}  ", it) for kind, it in entries], _RIGHT - _LEFT)
    return svg.picture(760.0, _BOTTOM + 90, machine.name, [*shapes, words])
