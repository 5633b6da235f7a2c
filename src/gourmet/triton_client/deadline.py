"""The deadline of an answer, with the client that waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# The rest of a deadline that has passed: a timeout of 0 would make sockets non-blocking.
_MIN_LEFT_S: Final = 0.001
# After so long without an answer, or a piece of one, a caller checks whether its client is still connected.
SILENCE_S: Final = 0.4


class Deadline:
    """A number of seconds from now, on a clock that cannot jump.

    `is_cancelled` returns whether the client has disconnected; `client` is its name, by which models queue.
    """

    def __init__(
        self, seconds: float, is_cancelled: Callable[[], bool] = lambda: False, client: str = ""
    ) -> None:
        self.seconds = seconds
        self.is_cancelled = is_cancelled
        self.client = client
        self.restart()

    def restart(self) -> None:
        self._end = time.monotonic() + self.seconds

    def left_s(self) -> float:
        return max(_MIN_LEFT_S, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.left_s() <= _MIN_LEFT_S
