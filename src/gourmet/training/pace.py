"""How fast a run goes, and how long it still has, on a machine that others use too."""

from __future__ import annotations

import statistics
from collections import deque

# A step this many times slower than the median was not slow: the process was stopped, or the
# machine slept. Its time is nobody's work and says nothing about the steps to come.
_PAUSE = 20.0


class Pace:
    """The durations of the last steps, each divided by the work it did."""

    def __init__(self, steps: int = 50) -> None:
        self._durations: deque[tuple[float, float]] = deque(maxlen=steps)

    def add(self, seconds: float, work: float) -> float:
        """Take note of a step; return the part of `seconds` that was work and not a pause."""
        if self._durations and seconds > _PAUSE * self.seconds(work):
            return self.seconds(work)
        self._durations.append((seconds, work))
        return seconds

    def seconds(self, work: float) -> float:
        """What `work` is likely to take: infinite before the first step."""
        if not self._durations:
            return float("inf")
        return work * statistics.median(seconds / work for seconds, work in self._durations)
