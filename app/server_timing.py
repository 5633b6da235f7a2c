"""How long a request was inside Triton, which Triton's statistics tell."""

from __future__ import annotations

import contextlib
import time
from typing import Final, NamedTuple

from app.core.errors import ServingError
from gourmet.client.deadline import Deadline
from gourmet.client.statistics import ModelStatistics
from gourmet.client.triton import Triton

# A backend counts a request after it answered, on a busy machine a while after: the statistics are read again
# after each of these pauses.
_PAUSES_S: Final = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.0)


class ServerTiming(NamedTuple):
    """Milliseconds, the mean of so many requests."""

    requests: int
    queue: float
    compute: float


class ServerTimer:
    """Begun before a request and read after its answer, which it never costs.

    Triton's answer over HTTP does not say. Its statistics do, as sums over a model's requests: what they grew
    by while a request was under way is that request's own where it was the only one that ended meanwhile, and
    else the mean of those that did, which is told as such.
    """

    def __init__(self, triton: Triton, model: str, deadline: Deadline) -> None:
        self._triton, self._model, self._deadline = triton, model, deadline
        self._before = self._now()

    def inside(self, version: str) -> ServerTiming | None:
        """What Triton noted of `version` since; None where it was loaded again or notes nothing."""
        before = self._before.get(version)
        for pause_s in _PAUSES_S:
            now = self._now().get(version)
            if before is None or now is None or now.requests < before.requests:
                return None
            if now.requests > before.requests:
                grew = now.since(before)
                compute_ns = grew.input_ns + grew.infer_ns + grew.output_ns
                each_ms = 1 / grew.requests / 1e6
                return ServerTiming(grew.requests, grew.queue_ns * each_ms, compute_ns * each_ms)
            time.sleep(pause_s)
        return None

    def _now(self) -> dict[str, ModelStatistics]:
        with contextlib.suppress(ServingError):
            found = self._triton.statistics(self._model, self._deadline)
            return {statistics.version: statistics for statistics in found}
        return {}
