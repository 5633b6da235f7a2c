"""The queue-delay lab: 0, 200, 2000 and 5000 µs with two instances."""

from __future__ import annotations

from typing import Final

from gourmet.bench.results import Demand, Finding
from gourmet.bench.scenario import Arm, Points, Scenario
from gourmet.bench.scenarios import delays
from gourmet.config_change import Change

_DELAYS_US: Final = (0, 200, 2000, 5000)
_LEVELS: Final = (2, 8)
MODEL: Final = "food_classifier_onnx"

_ABOUT: Final = (
    "How long may a request wait for company? Two instances, dynamic batching, and the delay alone changes. "
    "Clients that ask again as soon as they are answered send no more for being kept waiting."
)


def scenario(model: str = MODEL) -> Scenario:
    arms = tuple(
        Arm(
            delays.name(us),
            Change(instances=2, dynamic_batching=True, delay_us=us),
            tuple(Demand(model, level) for level in _LEVELS),
        )
        for us in _DELAYS_US
    )

    def read(points: Points) -> list[Finding]:
        names = [arm.name for arm in arms]
        return [
            said
            for level in _LEVELS
            for said in delays.batches_and_waits(points.of(*names, level=level), model)
        ]

    return Scenario("queue-delay", "The queue-delay lab", _ABOUT, arms, read)
