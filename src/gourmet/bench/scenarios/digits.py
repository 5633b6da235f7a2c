"""The digits lab: how many instances, and queue delays on a model that cannot batch and on one that can."""

from __future__ import annotations

from typing import Final

from gourmet.bench.results import Demand, Finding
from gourmet.bench.scenario import Arm, Points, Scenario, finding, not_measured, over, ratio
from gourmet.bench.scenarios import delays
from gourmet.config_change import Change

# The lab's own model, exported without a batch dimension, and ours, which has one.
LONE: Final = "onnx-mnist-cpu"
BATCHED: Final = "digits"
_COUNTS: Final = (24, 12, 4, 5)
_DELAYS_US: Final = (100, 500, 1000, 2000, 4000)
_LEVEL: Final = 16

_ABOUT: Final = (
    f"The digits lab: instance counts on {LONE}, then queue delays on it, which takes one image a request "
    f"and can batch nothing, and on {BATCHED}, which can. Sixteen clients ask again as soon as they are "
    "answered."
)


def scenario() -> Scenario:
    def asked(model: str) -> tuple[Demand, ...]:
        return (Demand(model, _LEVEL),)

    counts = tuple(Arm(_count(count), Change(instances=count), asked(LONE)) for count in _COUNTS)
    waits = tuple(
        Arm(f"{model} {delays.name(us)}", Change(instances=2), asked(model), delay_us=us)
        for model in (LONE, BATCHED)
        for us in _DELAYS_US
    )
    return Scenario("digits", "The digits lab", _ABOUT, counts + waits, read)


def read(points: Points) -> list[Finding]:
    """What the lab teaches, held against these figures."""
    lone, batched = (
        points.of(*(f"{model} {delays.name(us)}" for us in _DELAYS_US), level=_LEVEL)
        for model in (LONE, BATCHED)
    )
    return [_counts(points), delays.only_noise(lone, LONE), *delays.batches_and_waits(batched, BATCHED)]


def _counts(points: Points) -> Finding:
    claim = "with more instances than cores, a few do as well as many"
    found = points.of(*(_count(count) for count in _COUNTS), level=_LEVEL)
    if len(found) < len(_COUNTS):
        return not_measured(claim)
    most, few = found[0], found[2]
    numbers = over(found, lambda p: f"{p.rows_per_s.value:.0f} rows/s", lambda p: p.arm)
    return finding(ratio(few, most).value > 0.95, claim, numbers)


def _count(count: int) -> str:
    return f"{count} instances"
