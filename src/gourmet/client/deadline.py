"""A moment by which an answer must be there, who waits for it, and whether they still do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# What is left of a deadline that has passed: a timeout of 0 would mean not to wait for anything.
_MIN_LEFT_S: Final = 0.001
# After so long without an answer, or a piece of one, its reader is asked whether it still wants one.
SILENCE_S: Final = 0.4


class Deadline:
    """A number of seconds from now, on a clock that cannot jump.

    `is_cancelled` says that nobody waits any more; a model that shares itself among clients knows them by
    `client`.
    """

    def __init__(
        self, seconds: float, is_cancelled: Callable[[], bool] = lambda: False, client: str = ""
    ) -> None:
        self.seconds = seconds
        self.is_cancelled = is_cancelled
        self.client = client
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        return max(_MIN_LEFT_S, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.left_s() <= _MIN_LEFT_S
