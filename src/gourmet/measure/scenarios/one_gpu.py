"""What one GPU carries: models by instances and batching, up to 256 requests at a time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from gourmet.config_change import Change
from gourmet.measure.claims import Found, NotMeasured, above, claim
from gourmet.measure.results import Statement
from gourmet.measure.scenario import Arm, Points, Scenario, loads

_LEVELS: Final = (1, 8, 32, 128, 256)
_INSTANCES: Final = (1, 2, 4)

_ABOUT: Final = (
    "Models on a GPU, one row at a time and in batches of up to 16 that Triton puts together, with "
    "one, two and four instances; every client asks again as soon as it is answered."
)


def scenario(name: str, reference: Mapping[str, float]) -> Scenario:
    """`reference` is what a known lab reports as the best of each model, in rows per second."""
    batching = Change(dynamic_batching=True, delay_us=100, preferred_batches=(16,))
    arms = []
    for model in reference:
        for count in _INSTANCES:
            arm = f"{model}, {count} instance{'s' if count > 1 else ''}"
            alone, demands = Change(instances=count), loads(model, *_LEVELS)
            arms.append(Arm(f"{arm}, one row at a time", alone, demands))
            arms.append(Arm(f"{arm}, batches of up to 16", batching.over(alone), demands))

    def read(points: Points) -> list[Statement]:
        """The best that each model does, against the reference, and what it took."""
        return [
            claim(
                f"{model} answers more than the {rate:g} rows/s of the reference lab",
                partial(_best, points, model, rate),
            )
            for model, rate in reference.items()
        ]

    return Scenario(name, "One GPU", _ABOUT, tuple(arms), read, needs_gpu=True)


def _best(points: Points, model: str, reference: float) -> Found:
    found = [point for point in points.merged if point.demand.model == model]
    if not found:
        raise NotMeasured
    best = max(found, key=lambda point: point.rows_per_s.value)
    figures = (
        f"at best {best.rows_per_s:.4g} rows/s with {best.arm} at {best.demand}, "
        f"{best.executed_rows:.1f} rows per batch, p99 {best.latency_ms.p99:.1f} ms"
    )
    return above(best.rows_per_s, reference), figures
