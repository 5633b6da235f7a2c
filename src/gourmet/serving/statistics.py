"""What a running Triton counted of a model, which it does shortly after it answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gourmet.runtime.statistics import ModelStatistics, by_version
from gourmet.serving.client import triton

_BOOKED_WITHIN_S: Final = 3.0


def statistics_now(url: str, model: str) -> ModelStatistics:
    """Triton's counts of a model, over all its versions."""
    with triton(url) as client:
        return sum(by_version(client.get_inference_statistics(model)), ModelStatistics())


def booked(
    url: str, model: str, before: ModelStatistics, done: Callable[[ModelStatistics], bool]
) -> ModelStatistics:
    """The counts since `before` when they are `done`, or after a while as they are."""
    deadline = time.monotonic() + _BOOKED_WITHIN_S
    while True:
        counted = statistics_now(url, model).since(before)
        if done(counted) or time.monotonic() > deadline:
            return counted
        time.sleep(0.05)
