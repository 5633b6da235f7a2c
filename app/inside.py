"""How long a request was in Triton's queue and with its model.

Triton's answer over HTTP does not say. Its statistics do, as sums over a model's requests: what they
grew by while a request was under way is that request's own where it was the only one that ended
meanwhile, and else the mean of those that did, which is told as such.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Final

from app.errors import ServingError
from app.inference import Deadline, ModelStatistics, Triton

# A backend counts a request after it answered: so often is it asked again, after so long.
_LOOKS: Final = 5
_PAUSE_S: Final = 0.002


@dataclass(frozen=True)
class Inside:
    """Means over `requests`, which is 1 where no other ended meanwhile."""

    requests: int
    queue_ms: float
    compute_ms: float


class Watch:
    """Begun before a request and read after its answer, which it never costs."""

    def __init__(self, triton: Triton, model: str, deadline: Deadline) -> None:
        self._triton = triton
        self._model = model
        self._deadline = deadline
        self._before = self._now()

    def inside(self, version: str) -> Inside | None:
        """What Triton noted of `version` since; None where it was loaded anew or notes nothing."""
        before = self._before.get(version)
        for _ in range(_LOOKS):
            now = self._now().get(version)
            if before is None or now is None or now.requests < before.requests:
                return None
            if ended := now.requests - before.requests:
                return _mean(before, now, ended)
            time.sleep(_PAUSE_S)
        return None

    def _now(self) -> dict[str, ModelStatistics]:
        with contextlib.suppress(ServingError):
            found = self._triton.model_statistics(self._deadline, self._model)
            return {statistics.version: statistics for statistics in found}
        return {}


def _mean(before: ModelStatistics, now: ModelStatistics, requests: int) -> Inside:
    queue_ns = now.queue_ns - before.queue_ns
    compute_ns = sum(
        (
            now.input_ns - before.input_ns,
            now.infer_ns - before.infer_ns,
            now.output_ns - before.output_ns,
        )
    )
    return Inside(requests, queue_ns / requests / 1e6, compute_ns / requests / 1e6)
