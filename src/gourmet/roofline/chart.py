"""The chart: each layer by its intensity and the speed that it can reach, under the machine's roof."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from gourmet.reports import svg
from gourmet.roofline.analysis import Placed, Roofline

_WIDTH: Final = 760.0
_LEFT, _RIGHT, _TOP, _HEIGHT = 70.0, 740.0, 32.0, 340.0
_SMALLEST: Final = 2.5
_LARGEST: Final = 13.0
_OTHER: Final = "#9aa0a6"


def draw(title: str, rooflines: Sequence[Roofline]) -> svg.Drawing:
    """One panel a machine, one under another."""
    panels = [(f"batch {one.batch}, on {one.machine.name}", _panel(one)) for one in rooflines]
    return svg.stacked(f"Roofline of {title}", panels)


def _panel(found: Roofline) -> svg.Drawing:
    # Layers that compute nothing have no place on a logarithmic axis; their time is in the table.
    shown = [one for one in found.layers if one.operations]
    machine = found.machine
    roofs = {"fp32": machine.fp32}
    if any(one.layer.quantized for one in shown):
        roofs["int8"] = machine.int8
    ridges = [roof / machine.bandwidth for roof in roofs.values()]
    x = _log_scale([*(one.intensity for one in shown), *ridges], _LEFT, _RIGHT)
    reached = [one.operations / one.seconds for one in shown]
    y = _log_scale([*reached, *roofs.values()], _TOP + _HEIGHT, _TOP)
    shapes = _grid(x, y)
    for name, roof in roofs.items():
        # The slope is common to all roofs, and starts where it enters the picture.
        low = max(10**x.low, 10**y.low / machine.bandwidth)
        slope = [(low, low * machine.bandwidth)] if name == list(roofs)[-1] else []
        corner = [*slope, (roof / machine.bandwidth, roof), (10**x.high, roof)]
        shapes.append(svg.path([(_at(x, a), _at(y, b)) for a, b in corner], svg.INK, 1.5))
        label = f"{name}: {_short(roof)} operations/s"
        shapes.append(svg.text(_RIGHT - 4, _at(y, roof) - _LARGEST - 5, label, anchor="end"))
    shapes.append(_bandwidth_label(x, y, machine.bandwidth))
    colours = _colours(shown)
    slowest = max((one.seconds for one in shown), default=1.0)
    for one in sorted(shown, key=lambda placed: -placed.seconds):
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(one.seconds / slowest)
        share = one.seconds / found.seconds
        hint = f"{one.layer.name}: {one.intensity:.3g} operations/byte, {share:.1%} of the time"
        where = _at(x, one.intensity), _at(y, one.operations / one.seconds)
        drawn = svg.dot(*where, colours.get(_kind(one), _OTHER), hint, radius)
        shapes.append(
            drawn.replace("<circle", "<circle fill-opacity='0.65' stroke='#fff' stroke-width='0.7'")
        )
    # The legend reckons with narrow letters; a little air keeps wide ones apart.
    others = {"others": _OTHER} if any(_kind(one) not in colours for one in shown) else {}
    entries = [(f"{kind}  ", colour) for kind, colour in (colours | others).items()]
    words, _ = svg.legend(_LEFT, _TOP + _HEIGHT + 58, entries, _RIGHT - _LEFT)
    return svg.picture(_WIDTH, _TOP + _HEIGHT + 90, machine.name, [*shapes, words])


def _colours(shown: Sequence[Placed]) -> dict[str, str]:
    """A colour for each of the kinds of layers that take most of the time."""
    seconds: dict[str, float] = {}
    for one in shown:
        seconds[_kind(one)] = seconds.get(_kind(one), 0.0) + one.seconds
    return dict(zip(sorted(seconds, key=lambda kind: -seconds[kind])[:5], svg.COLOURS, strict=False))


def _kind(placed: Placed) -> str:
    return placed.layer.op + (" int8" if placed.layer.quantized else "")


def _log_scale(values: Iterable[float], start: float, end: float) -> svg.Scale:
    """Whole powers of ten around the values."""
    known = [math.log10(value) for value in values if 0 < value < math.inf]
    low, high = math.floor(min(known)), math.ceil(max(known) + 0.15)
    return svg.Scale(low, max(high, low + 1), start, end)


def _at(scale: svg.Scale, value: float) -> float:
    return scale(math.log10(value))


def _grid(x: svg.Scale, y: svg.Scale) -> list[str]:
    bottom = _TOP + _HEIGHT
    shapes = []
    for power in range(int(x.low), int(x.high) + 1):
        shapes.append(svg.line(x(power), _TOP, x(power), bottom))
        shapes.append(svg.text(x(power), bottom + 16, f"{10.0**power:g}", anchor="middle", colour=svg.FAINT))
    for power in range(int(y.low), int(y.high) + 1):
        shapes.append(svg.line(_LEFT, y(power), _RIGHT, y(power)))
        shapes.append(svg.text(_LEFT - 6, y(power) + 4, _short(10.0**power), anchor="end", colour=svg.FAINT))
    words = "operations for each byte read or written; the area of a dot is its share of the time"
    shapes.append(svg.text((_LEFT + _RIGHT) / 2, bottom + 34, words, anchor="middle", colour=svg.FAINT))
    shapes.append(svg.text(_LEFT, _TOP - 12, "operations a second that it can reach", colour=svg.FAINT))
    return shapes


def _bandwidth_label(x: svg.Scale, y: svg.Scale, bandwidth: float) -> str:
    """The memory's speed, along the slope."""
    low = max(x.low, y.low - math.log10(bandwidth))
    a, b = 10 ** (low + 0.15), 10 ** (low + 0.65)
    (x1, y1), (x2, y2) = ((_at(x, at), _at(y, at * bandwidth)) for at in (a, b))
    angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
    turn = f"transform='rotate({angle:.1f} {x1:.1f} {y1:.1f}) translate(0 {-_LARGEST - 3:.0f})'"
    return svg.text(x1, y1, f"memory: {_short(bandwidth)}B/s", more=turn)


def _short(value: float) -> str:
    """A number with the prefix of its thousands."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "
