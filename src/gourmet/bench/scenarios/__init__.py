"""The exercises of the known serving labs, each under a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gourmet.bench.scenario import Scenario
from gourmet.bench.scenarios import digits, food, gpu, queue_delay

SCENARIOS: Final[Mapping[str, Callable[[], Scenario]]] = {
    "food": food.scenario,
    "digits": digits.scenario,
    "queue-delay": queue_delay.scenario,
    "gpu": gpu.scenario,
}
