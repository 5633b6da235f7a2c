"""Compare layers with a machine: the limit of each, the batch size at which it changes, and a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gourmet.reports.chart import COLOURS, FAINT, INK, Drawing, Series, lines, stacked
from gourmet.roofline.counting import Counted, LayerCost
from gourmet.roofline.machines import Machine

_COUNTS: Final = (
    "operations for each byte read or written; the area of a dot is its share of the time",
    "operations a second that it can reach",
)


@dataclass(frozen=True)
class Placed:
    """A layer on a machine, at a batch size."""

    name: str
    op: str
    quantized: bool
    operations: float
    bytes: float
    intensity: float  # operations a byte
    bound: Literal["memory", "compute"]
    seconds: float  # no less than this
    from_batch: int | None  # the smallest batch at which it is not memory-bound; None: at none

    @property
    def kind(self) -> str:
        return self.op + (" int8" if self.quantized else "")


@dataclass(frozen=True)
class Roofline:
    """All layers of a model on a machine. The seconds are a lower bound unless values stay in a cache."""

    machine: Machine
    batch: int
    layers: tuple[Placed, ...]

    @property
    def seconds(self) -> float:
        return sum(placed.seconds for placed in self.layers)

    @property
    def rows_per_s(self) -> float:
        return self.batch / self.seconds

    @property
    def computing_s(self) -> float:
        """Return the time with everything in a cache, which is a lower bound."""
        return sum(layer.operations / self.machine.peak(layer.quantized) for layer in self.layers)

    @property
    def memory_share(self) -> float:
        return sum(layer.seconds for layer in self.layers if layer.bound == "memory") / self.seconds

    def as_dict(self) -> dict[str, Any]:
        figures = {
            name: getattr(self, name)
            for name in ("batch", "seconds", "rows_per_s", "computing_s", "memory_share")
        }
        return {"machine": vars(self.machine), **figures, "layers": [vars(layer) for layer in self.layers]}


def roofline(counted: Counted, machine: Machine, batch: int = 1) -> Roofline:
    """Place every layer that computes or moves anything."""
    busy = [layer for layer in counted.layers if layer.operations or layer.moved_bytes or layer.weight_bytes]
    return Roofline(machine, batch, tuple(place(layer, machine, batch) for layer in busy))


def place(layer: LayerCost, machine: Machine, batch: int) -> Placed:
    operations = layer.operations * batch
    moved = layer.weight_bytes + layer.moved_bytes * batch
    computing, moving = operations / machine.peak(layer.quantized), moved / machine.bandwidth
    return Placed(
        layer.name,
        layer.op,
        layer.quantized,
        operations,
        moved,
        operations / moved if moved else math.inf,
        "memory" if moving > computing else "compute",
        max(computing, moving),
        from_batch(layer, machine),
    )


def from_batch(layer: LayerCost, machine: Machine) -> int | None:
    """Return the smallest batch size whose intensity reaches the machine's ridge.

    A batch of b does b × operations on weights + b × moved bytes, so that weights weigh less and less;
    what each row moves stays, and where that alone is below the ridge no batch helps.
    """
    ridge = machine.ridge(layer.quantized)
    left = layer.operations - ridge * layer.moved_bytes
    return max(1, math.ceil(ridge * layer.weight_bytes / left)) if left > 0 else None


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
    # Layers that compute nothing have no place on a logarithmic axis; their time is in the table.
    shown = sorted(
        (layer for layer in roofline.layers if layer.operations and layer.bytes),
        key=lambda layer: -layer.seconds,
    )
    machine = roofline.machine
    roofs = {"fp32": machine.fp32}
    if any(layer.quantized for layer in shown):
        roofs["int8"] = machine.int8
    ridges = [roof / machine.bandwidth for roof in roofs.values()]
    lowest = min(*ridges, *(layer.intensity for layer in shown))
    highest = 2 * max(*ridges, *(layer.intensity for layer in shown))
    drawn = []
    for (name, roof), ridge, ink in zip(roofs.items(), ridges, (INK, FAINT), strict=False):
        corners = [(lowest, lowest * machine.bandwidth), (ridge, roof), (highest, roof)]
        drawn.append(Series(f"{name}: {roof / 1e9:,.0f} G operations/s", corners, ink))
    for bound, colour in (("memory", COLOURS[0]), ("compute", COLOURS[1])):
        mine = [layer for layer in shown if layer.bound == bound]
        radii = [2.5 + 10.5 * math.sqrt(layer.seconds / shown[0].seconds) for layer in mine]
        hints = [
            f"{layer.name}, {layer.kind}: {layer.intensity:.3g} operations/byte, "
            f"{layer.seconds / roofline.seconds:.1%} of the time"
            for layer in mine
        ]
        places = [(layer.intensity, layer.operations / layer.seconds) for layer in mine]
        name = f"{bound}-bound" if mine else ""
        drawn.append(Series(name, places, colour, joined=False, radii=radii, hints=hints))
    return lines(drawn, machine.name, _COUNTS, size=(760.0, 460.0), log=True)
