"""Layers against a machine: which limit each meets, and from which batch on it is another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from gourmet.roofline.counting import Counted, Layer
from gourmet.roofline.machines import Machine


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
    """All layers of a model on a machine; the seconds are a limit that nothing can beat."""

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
    def memory_share(self) -> float:
        return sum(one.seconds for one in self.layers if one.bound == "memory") / self.seconds

    def as_dict(self) -> dict[str, Any]:
        figures = {name: getattr(self, name) for name in ("batch", "seconds", "rows_per_s", "memory_share")}
        return {"machine": vars(self.machine), **figures, "layers": [vars(one) for one in self.layers]}


def roofline(counted: Counted, machine: Machine, batch: int = 1) -> Roofline:
    """Place every layer that does anything."""
    busy = [layer for layer in counted.layers if layer.operations or layer.moved_bytes or layer.weight_bytes]
    return Roofline(machine, batch, tuple(place(layer, machine, batch, counted.batches) for layer in busy))


def place(layer: Layer, machine: Machine, batch: int, batches: bool = True) -> Placed:
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
        from_batch(layer, machine) if batches else (None if moving > computing else 1),
    )


def from_batch(layer: Layer, machine: Machine) -> int | None:
    """The smallest batch whose intensity reaches the machine's ridge.

    A batch of b does b × operations on weights + b × moved bytes, so that weights weigh less and less;
    what each row moves stays, and where that alone is below the ridge no batch helps.
    """
    ridge = machine.ridge(layer.quantized)
    left = layer.operations - ridge * layer.moved_bytes
    return max(1, math.ceil(ridge * layer.weight_bytes / left)) if left > 0 else None
