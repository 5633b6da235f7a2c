"""Continuous batching: rows that are finished leave between two steps, and others join.

    loop = Loop(engine, start=1, end=0, max_rows=16)
    loop.add_requests(rows, memories)
    while not loop.is_idle:
        loop.step()

A row's tokens do not depend on who else is at work: see `slots`. A row with beams has as many places as
beams, which are free when it joins; what a search does with them, `beams` says. The loop has no thread:
`room` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from gourmet.errors import GourmetError
from gourmet.runtime.decoding.beams import BeamSearch
from gourmet.runtime.decoding.engine import Engine, Floats, Likeliest
from gourmet.runtime.decoding.slots import Slots

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
    # Makes the source of itself, where that may take long: the room has threads for it.
    prepare: Callable[[Row], Any] | None = None
    client: str = ""  # who has a line and a share of the room
    deadline: float = float("inf")  # by the clock of time.monotonic
    is_cancelled: Callable[[], bool] = lambda: False
    on_tokens: Callable[[Row], None] = lambda row: None  # called after each token, and at the end
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0  # the logarithm of the probability of all tokens
    others: Sequence[Sequence[int]] = ()  # what else a search found, the better first
    arrived: float = field(default_factory=time.monotonic)
    forced: int = 0  # tokens of the prefix that the network has had
    finished: FinishReason | None = None
    error: Exception | None = None

    @property
    def answer(self) -> Sequence[int]:
        return self.answer_of(self.tokens)

    def answer_of(self, tokens: Sequence[int]) -> Sequence[int]:
        return [*self.prefix, *tokens] if self.prefix_is_answer else tokens

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


class Loop:
    def __init__(self, engine: Engine, *, start: int, end: int, max_rows: int) -> None:
        self._engine, self._slots = engine, Slots(engine, max_rows, start)
        self._end = end
        # Of each place; that of a search are several, but for its first step.
        self._rows: list[Row] = []
        self._searches: dict[Row, BeamSearch] = {}
        # Sums over all rows so far: tokens, rows with their first one, and how long that took.
        self.tokens, self.begun, self.first_token_s = 0, 0, 0.0

    @property
    def capacity(self) -> int:
        """How many more places may be taken."""
        return self._slots.max_rows - sum(row.beams for row in self.rows)

    @property
    def rows(self) -> Sequence[Row]:
        return list(dict.fromkeys(self._rows))

    @property
    def is_idle(self) -> bool:
        return not self._rows

    def check(self, rows: Sequence[Row]) -> None:
        """Raise ValueError where one would never have enough places."""
        widest, places = max((row.beams for row in rows), default=1), self._slots.max_rows
        if widest > places:
            raise ValueError(
                f"{widest} beams need as many rows of the loop, which has {places}: ask for fewer beams, or "
                "serve more rows_at_once"
            )

    def add_requests(self, rows: Sequence[Row], memories: Sequence[Floats]) -> None:
        """Rows and what they attend to; their beams are at most as many as there is capacity for."""
        waited_for = [(row, memory) for row, memory in zip(rows, memories, strict=True) if not row.gave_up()]
        for row, _ in waited_for:
            if row.beams > 1:
                self._searches[row] = BeamSearch(row.beams, row.max_tokens, self._end, len(self._rows))
            self._rows.append(row)
        if waited_for:
            self._slots.admit([memory for _, memory in waited_for])

    def step(self) -> None:
        """A token for every row; those that are finished leave, and each row learns of what it got."""
        for row in self.rows:
            row.gave_up()
        self._remove_finished()
        if not self._rows:
            return
        found = self._slots.step()
        tokens = found.tokens[:, 0].tolist()
        advanced: list[Row] = []
        searching: dict[Row, BeamSearch] = {}
        for place, (row, score) in enumerate(zip(self._rows, found.scores[:, 0].tolist(), strict=True)):
            if row.forced < len(row.prefix):
                tokens[place] = row.prefix[row.forced]
                row.forced += 1
                continue
            if row.beams > 1:
                searching[row] = self._searches[row]
                continue
            advanced.append(row)
            if not row.tokens:
                self.begun += 1
                self.first_token_s += time.monotonic() - row.arrived
            row.score += score
            if tokens[place] == self._end:
                row.finished = "stop"
            else:
                row.tokens.append(tokens[place])
                if len(row.tokens) >= row.max_tokens:
                    row.finished = "length"
        for row, search in searching.items():
            self._advance(row, search, found, tokens)
        advanced += searching
        self.tokens += len(advanced)
        self._slots.choose(tokens)
        self._remove_finished()
        for row in advanced:
            row.on_tokens(row)

    def complete(self, rows: Sequence[Row]) -> None:
        """Encode and finish all of these, for callers that have nothing to do meanwhile."""
        self.check(rows)
        waiting = list(rows)
        while waiting or not self.is_idle:
            waiting = [row for row in waiting if not row.gave_up()]  # nobody needs them encoded
            capacity = self.capacity
            fitting = sum(places <= capacity for places in accumulate(row.beams for row in waiting))
            joining, waiting = waiting[:fitting], waiting[fitting:]
            if joining:
                self.add_requests(joining, self._engine.encode([row.source for row in joining]))
            self.step()

    def fail(self, error: Exception) -> None:
        """All rows leave, with this error as their answer."""
        rows, self._rows = self.rows, []
        self._searches.clear()
        self._slots.used = 0
        for row in rows:
            row.finish("failed", error)

    def _advance(self, row: Row, search: BeamSearch, found: Likeliest, tokens: list[int]) -> None:
        """Its beginnings go on in its places; the tokens of these become theirs."""
        chosen = search.advance(found)
        if not chosen:
            (row.tokens, row.score), *others = search.answers
            row.others = [each.tokens for each in others]
            row.finished = "stop"
            return
        more = range(len(self._rows), len(self._rows) + len(chosen) - len(search.places))
        self._rows += [row] * len(more)
        tokens += [self._end] * len(more)
        if copied := search.move([*search.places, *more], [parent for parent, _ in chosen]):
            self._slots.copy(copied)
        for place, (_, token) in zip(search.places, chosen, strict=True):
            tokens[place] = token

    def _remove_finished(self) -> None:
        for place in reversed(range(len(self._rows))):
            if self._rows[place].finished:
                self._searches.pop(self._rows[place], None)
                moved = self._slots.leave(place)
                row = self._rows[place] = self._rows[moved]
                self._rows.pop()
                if row.beams > 1 and not row.finished:
                    places = self._searches[row].places
                    places[places.index(moved)] = place
