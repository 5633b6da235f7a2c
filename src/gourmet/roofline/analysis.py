"""The layers of a model on a machine: totals, and the chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gourmet.reports.chart import COLOURS, FAINT, INK, Drawing, Series, lines, stacked
from gourmet.roofline.counting import Layer
from gourmet.roofline.machines import Machine

_COUNTS: Final = (
    "operations for each byte read or written; the area of a dot is its share of the time",
    "operations a second that it can reach",
)


@dataclass(frozen=True)
class Roofline:
    """The layers that compute or move anything on a machine, at a batch size."""

    machine: Machine
    batch: int
    layers: Sequence[Layer]

    def seconds_of(self, layer: Layer) -> float:
        return layer.seconds(self.machine, self.batch)

    def bound(self, layer: Layer) -> str:
        return "memory" if layer.is_memory_bound(self.machine, self.batch) else "compute"

    @property
    def seconds(self) -> float:
        return sum(map(self.seconds_of, self.layers))

    @property
    def computing_s(self) -> float:
        """Return the time with everything in a cache, which is a lower bound."""
        peak = self.machine.peak
        return sum(layer.operations * self.batch / peak(layer.quantized) for layer in self.layers)

    @property
    def memory_share(self) -> float:
        waiting = (layer for layer in self.layers if self.bound(layer) == "memory")
        return sum(map(self.seconds_of, waiting)) / self.seconds

    def as_dict(self) -> dict[str, Any]:
        names = ("batch", "seconds", "computing_s", "memory_share")
        return {"machine": vars(self.machine), **{name: getattr(self, name) for name in names}}


def draw(title: str, rooflines: Sequence[Roofline]) -> Drawing:
    """Draw each layer by its intensity and its possible speed under the roof; a panel for each machine."""
    panels = [
        (
            f"batch {panel.batch}, on {panel.machine.name}: {panel.machine.bandwidth / 1e9:,.3g} GB/s",
            _panel(panel),
        )
        for panel in rooflines
    ]
    return stacked(f"Roofline of {title}", panels)


def _panel(roofline: Roofline) -> Drawing:
    machine, batch = roofline.machine, roofline.batch
    # Layers that compute nothing have no place on a logarithmic axis; their time is in the table.
    shown = [layer for layer in roofline.layers if layer.operations and layer.bytes(batch)]
    shown.sort(key=roofline.seconds_of, reverse=True)
    roofs = {"fp32": machine.fp32}
    if any(layer.quantized for layer in shown):
        roofs["int8"] = machine.int8
    ridges = [roof / machine.bandwidth for roof in roofs.values()]
    intensities = [*ridges, *(layer.intensity(batch) for layer in shown)]
    lowest, highest = min(intensities), 2 * max(intensities)
    drawn = []
    for (name, roof), ridge, ink in zip(roofs.items(), ridges, (INK, FAINT), strict=False):
        corners = [(lowest, lowest * machine.bandwidth), (ridge, roof), (highest, roof)]
        drawn.append(Series(f"{name}: {roof / 1e9:,.0f} G operations/s", corners, ink))
    for bound, colour in (("memory", COLOURS[0]), ("compute", COLOURS[1])):
        mine = [layer for layer in shown if roofline.bound(layer) == bound]
        seconds = [*map(roofline.seconds_of, mine)]
        longest = roofline.seconds_of(shown[0]) if shown else 1.0
        radii = [2.5 + 10.5 * math.sqrt(took_s / longest) for took_s in seconds]
        hints = [
            f"{layer.name}, {layer.kind}: {layer.intensity(batch):.3g} operations/byte, "
            f"{took_s / roofline.seconds:.1%} of the time"
            for layer, took_s in zip(mine, seconds, strict=True)
        ]
        places = [
            (layer.intensity(batch), layer.operations * batch / took_s)
            for layer, took_s in zip(mine, seconds, strict=True)
        ]
        name = f"{bound}-bound" if mine else ""
        drawn.append(Series(name, places, colour, joined=False, radii=radii, hints=hints))
    return lines(drawn, machine.name, _COUNTS, size=(760.0, 460.0), log=True)
