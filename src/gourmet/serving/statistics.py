"""What a running Triton counted of a model, which it does shortly after it answered."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Final

from gourmet.runtime.statistics import ModelStatistics, of_all_versions
from gourmet.serving.client import TritonUnreachable

_BOOKED_WITHIN_S: Final = 3.0


def statistics_now(url: str, model: str) -> ModelStatistics:
    """Triton's counts of a model, over all its versions."""
    try:
        with urllib.request.urlopen(f"http://{url}/v2/models/{model}/stats", timeout=10) as answer:
            return of_all_versions(json.load(answer))
    except OSError as exc:
        raise TritonUnreachable(f"Triton at {url} does not tell what it counted of {model!r}: {exc}") from exc


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
