"""What one GPU carries: both food models by instances and batching, up to 256 requests at a time."""

from __future__ import annotations

from typing import Final

from gourmet.bench.results import Demand, Finding, Point
from gourmet.bench.scenario import Arm, Points, Scenario, finding, not_measured
from gourmet.config_change import Change
from gourmet.doctor import gpus
from gourmet.errors import GourmetError

LEVELS: Final = (1, 8, 32, 128, 256)
INSTANCES: Final = (1, 2, 4)
# What a known lab reports as its best on two P100, in rows per second.
REFERENCE: Final = {"food_classifier": 193.0, "food_classifier_onnx": 1257.0}

_ABOUT: Final = (
    "Both food models on a GPU, one row at a time and in batches of up to 16 that Triton puts together, with "
    "one, two and four instances; every client asks again as soon as it is answered."
)


class NoGpu(GourmetError):
    """The scenario is about a GPU, and this machine has none."""


def require() -> None:
    """Raise unless there is a GPU: figures of a CPU under this title would mislead."""
    if not gpus.find():
        raise NoGpu(
            "this machine has no NVIDIA GPU, which the scenario gpu is about: run it where one is, "
            "or `gourmet bench scenario food` here"
        )


def scenario() -> Scenario:
    arms = []
    for model in REFERENCE:
        demands = tuple(Demand(model, level) for level in LEVELS)
        for count in INSTANCES:
            alone = Change(instances=count)
            batching = Change(dynamic_batching=True, delay_us=100, preferred_batches=(16,)).over(alone)
            arms.append(Arm(_name(model, count, False), alone, demands))
            arms.append(Arm(_name(model, count, True), batching, demands))
    return Scenario("gpu", "One GPU", _ABOUT, tuple(arms), read)


def read(points: Points) -> list[Finding]:
    """The best that each model does, against the reference, and what it took."""
    return [_best(points, model, reference) for model, reference in REFERENCE.items()]


def _best(points: Points, model: str, reference: float) -> Finding:
    claim = f"{model} answers more than the {reference:g} rows/s of the reference lab"
    names = [_name(model, count, batching) for count in INSTANCES for batching in (False, True)]
    found: list[Point] = [point for level in LEVELS for point in points.of(*names, level=level)]
    if not found:
        return not_measured(claim)
    best = max(found, key=lambda point: point.rows_per_s.value)
    numbers = (
        f"at best {best.rows_per_s:.4g} rows/s with {best.arm} at c={best.demand.level:g}, "
        f"{best.executed_rows:.1f} rows a batch, p99 {best.latency_ms.p99:.1f} ms"
    )
    return finding(best.rows_per_s.value > reference, claim, numbers)


def _name(model: str, instances: int, batching: bool) -> str:
    count = f"{instances} instance" + ("" if instances == 1 else "s")
    return f"{model}, {count}, {'batches of up to 16' if batching else 'one row at a time'}"
