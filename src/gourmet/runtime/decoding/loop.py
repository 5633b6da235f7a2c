"""Continuous batching: rows that are done leave between two steps, and those that wait join.

    loop = Loop(engine, pad=1, end=0, rows=16)
    loop.submit([Row(source=[…], most=128, told=print)])

A row's words do not depend on who else is at work: see `slots`. Whoever asked is told from the loop's thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gourmet.errors import GourmetError
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.slots import Slots

Ending = Literal["whole", "cut", "late", "unwanted", "failed"]
# So many may wait for each that can be at work.
_WAITING: Final = 8


class TooManyRows(GourmetError):
    """More wait already than should."""


@dataclass
class Row:
    """A source, and what becomes of it: `ended` says why it goes no further."""

    source: Sequence[int]
    most: int
    until: float = float("inf")  # by the clock of time.monotonic
    wanted: Callable[[], bool] = lambda: True
    told: Callable[[Row], None] = lambda row: None  # of each word, and of the end
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0  # the logarithm of the probability of all words
    ended: Ending | None = None
    error: Exception | None = None


class Loop:
    def __init__(self, engine: Engine, *, pad: int, end: int, rows: int, continuous: bool = True) -> None:
        """Without `continuous`, who waits is let in when all are done: to see what it is good for."""
        self._slots = Slots(engine, rows, pad)
        self._end = end
        self._continuous = continuous
        self._changed = threading.Condition()
        self._waiting: deque[Row] = deque()
        self._at_work: list[Row] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """All of them, or none: raises TooManyRows."""
        with self._changed:
            if len(self._waiting) + len(rows) > max(_WAITING * self._slots.most, len(rows)):
                raise TooManyRows(f"{len(self._waiting)} sentences wait already: ask again later")
            self._waiting.extend(rows)
            self._changed.notify()

    def close(self) -> None:
        """End it; who is at work or waits is told that it failed."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._at_work or self._closing):
                    self._changed.wait()
                if self._closing:
                    break
                joining = self._who_joins()
            try:
                self._begin(joining)
                self._step()
            except Exception as exc:  # of the engine: it is the answer of all whom it concerns
                self._fail(exc)
        self._fail(GourmetError("the model is being unloaded"))

    def _who_joins(self) -> list[Row]:
        joining: list[Row] = []
        room = self._slots.most - len(self._at_work)
        if self._continuous or not self._at_work:
            while self._waiting and len(joining) < room:
                joining.append(self._waiting.popleft())
        return joining

    def _begin(self, joining: Sequence[Row]) -> None:
        there = [row for row in joining if not self._is_over(row)]
        self._at_work += there
        if there:
            self._slots.admit([row.source for row in there])

    def _step(self) -> None:
        for place in reversed(range(len(self._at_work))):
            if self._is_over(self._at_work[place]):
                self._remove(place)
        if not self._at_work:
            return
        found = self._slots.step()
        tokens = found.tokens[:, 0].tolist()
        self._slots.choose(tokens)
        for row, token, score in zip(self._at_work, tokens, found.scores[:, 0].tolist(), strict=True):
            row.score += score
            if token == self._end:
                row.ended = "whole"
            else:
                row.tokens.append(token)
                if len(row.tokens) >= row.most:
                    row.ended = "cut"
        told = list(self._at_work)
        for place in reversed(range(len(self._at_work))):
            if self._at_work[place].ended:
                self._remove(place)
        for row in told:
            row.told(row)

    def _is_over(self, row: Row) -> bool:
        """Whether nobody waits for it any more; who does is told."""
        if row.ended is None:
            row.ended = "late" if time.monotonic() > row.until else None if row.wanted() else "unwanted"
            if row.ended:
                row.told(row)
        return row.ended is not None

    def _remove(self, place: int) -> None:
        moved = self._slots.leave(place)
        self._at_work[place] = self._at_work[moved]
        self._at_work.pop()

    def _fail(self, exc: Exception) -> None:
        with self._changed:
            rows = [*self._at_work, *(self._waiting if self._closing else ())]
            if self._closing:
                self._waiting.clear()
        self._at_work.clear()
        self._slots.used = 0
        for row in rows:
            row.ended, row.error = "failed", exc
            row.told(row)
