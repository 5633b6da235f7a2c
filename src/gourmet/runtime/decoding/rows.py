"""A row: what it attends to, how far it may go, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gourmet.errors import GourmetError

# The network ended the answer; it reached its limit; its time ran out; its client left; something broke.
FinishReason = Literal["stop", "length", "deadline", "cancelled", "failed"]


class TooManyRows(GourmetError):
    """More rows wait already than may."""


@dataclass(eq=False)
class Row:
    """A source and the answer to it. The `prefix` is forced: the network continues it, nobody counts it."""

    source: Any  # what the system's engine encodes
    max_tokens: int
    prefix: Sequence[int] = ()
    prefix_is_answer: bool = False
    beams: int = 1
    deadline: float = float("inf")  # by the clock of time.monotonic
    is_cancelled: Callable[[], bool] = lambda: False
    on_tokens: Callable[[Row], None] = lambda row: None  # called after each token, and at the end
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0  # the logarithm of the probability of all tokens
    forced: int = 0  # tokens of the prefix that the network has had
    finished: FinishReason | None = None
    error: Exception | None = None

    @property
    def answer(self) -> Sequence[int]:
        return [*self.prefix, *self.tokens] if self.prefix_is_answer else self.tokens

    def finish(self, reason: FinishReason, error: Exception | None = None) -> None:
        self.finished, self.error = reason, error
        self.on_tokens(self)

    def gave_up(self) -> bool:
        """Whether it is finished, which it is when its time ran out or its client left."""
        if self.finished is None:
            if time.monotonic() > self.deadline:
                self.finish("deadline")
            elif self.is_cancelled():
                self.finish("cancelled")
        return self.finished is not None
