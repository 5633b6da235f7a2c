"""What one GPU carries: models by instances and batching, up to 256 requests at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gourmet.config_change import Change
from gourmet.measure.claims import above, claim, not_measured
from gourmet.measure.results import LoadSpec, Point, Statement
from gourmet.measure.scenario import Arm, Points, Scenario

_LEVELS: Final = (1, 8, 32, 128, 256)
_INSTANCES: Final = (1, 2, 4)

_ABOUT: Final = (
    "Models on a GPU, one row at a time and in batches of up to 16 that Triton puts together, with "
    "one, two and four instances; every client asks again as soon as it is answered."
)


def scenario(name: str, reference: Mapping[str, float]) -> Scenario:
    """`reference` is what a known lab reports as the best of each model, in rows per second."""
    arms = []
    for model in reference:
        demands = tuple(LoadSpec(model, level) for level in _LEVELS)
        for count in _INSTANCES:
            alone = Change(instances=count)
            batching = Change(dynamic_batching=True, delay_us=100, preferred_batches=(16,)).over(alone)
            arms.append(Arm(_name(model, count, False), alone, demands))
            arms.append(Arm(_name(model, count, True), batching, demands))

    def read(points: Points) -> list[Statement]:
        """The best that each model does, against the reference, and what it took."""
        return [_best(points, model, rate) for model, rate in reference.items()]

    return Scenario(name, "One GPU", _ABOUT, tuple(arms), read, needs_gpu=True)


def _best(points: Points, model: str, reference: float) -> Statement:
    words = f"{model} answers more than the {reference:g} rows/s of the reference lab"
    names = [_name(model, count, batching) for count in _INSTANCES for batching in (False, True)]
    found: list[Point] = [point for level in _LEVELS for point in points.of(*names, level=level)]
    if not found:
        return not_measured(words)
    best = max(found, key=lambda point: point.rows_per_s.value)
    figures = (
        f"at best {best.rows_per_s:.4g} rows/s with {best.arm} at c={best.demand.level:g}, "
        f"{best.executed_rows:.1f} rows per batch, p99 {best.latency_ms.p99:.1f} ms"
    )
    return claim(above(best.rows_per_s, reference), words, figures)


def _name(model: str, instances: int, batching: bool) -> str:
    count = f"{instances} instance" + ("" if instances == 1 else "s")
    return f"{model}, {count}, {'batches of up to 16' if batching else 'one row at a time'}"
