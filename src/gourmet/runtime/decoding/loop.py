"""Continuous batching: finished rows leave between two steps, and waiting rows join.

    loop = Loop(engine, start=1, end=0, max_rows=16)
    loop.add_requests(rows, memories)
    while not loop.is_idle:
        loop.step()

A row's tokens do not depend on the other rows (see `slots`). A row with beams needs as many free places as
beams when it joins; `beams` uses them. The loop has no thread: `room` runs it.
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

# The network ended the answer; it reached max_tokens; its deadline passed; its client disconnected; an error.
FinishReason = Literal["stop", "length", "deadline", "cancelled", "failed"]


class TooManyRows(GourmetError):
    """The queue of waiting rows is full."""


@dataclass(eq=False)
class Row:
    """A source and its answer. The network continues the forced `prefix`, which does not count as tokens."""

    source: Any  # the input of the engine's `encode`
    max_tokens: int
    prefix: Sequence[int] = ()
    prefix_is_answer: bool = False
    beams: int = 1
    # Makes the source, if that may take long: the room has threads for it.
    prepare: Callable[[Row], Any] | None = None
    client: str = ""  # clients have a queue each
    deadline: float = float("inf")  # by the clock of time.monotonic
    is_cancelled: Callable[[], bool] = lambda: False
    on_tokens: Callable[[Row], None] = lambda row: None  # called after each token, and at the end
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0  # the log probability of all tokens
    others: Sequence[Sequence[int]] = ()  # the other answers of a beam search, the best first
    arrived: float = field(default_factory=time.monotonic)
    forced: int = 0  # tokens of the prefix that the network has read
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
        """Finish the row if its deadline passed or its client disconnected; return whether it is finished."""
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
        # The row at each place. A search has one place at its first step, and then one for each beam.
        self._rows: list[Row] = []
        self._searches: dict[Row, BeamSearch] = {}
        # Sums since the start: tokens, rows that have a first token, and the time from arrival to that token.
        self.tokens, self.begun, self.first_token_s = 0, 0, 0.0

    @property
    def capacity(self) -> int:
        """The number of free places."""
        return self._slots.max_rows - sum(row.beams for row in self.rows)

    @property
    def rows(self) -> Sequence[Row]:
        return list(dict.fromkeys(self._rows))

    @property
    def is_idle(self) -> bool:
        return not self._rows

    def check(self, rows: Sequence[Row]) -> None:
        """Raise ValueError if a row has more beams than the loop has places."""
        beams, places = max((row.beams for row in rows), default=1), self._slots.max_rows
        if beams > places:
            raise ValueError(
                f"{beams} beams need as many rows of the loop, which has {places}: ask for fewer beams, or "
                "serve the model with more rows_at_once"
            )

    def add_requests(self, rows: Sequence[Row], memories: Sequence[Floats]) -> None:
        """Add rows with their memories. All their beams together must not exceed the capacity."""
        joining = [(row, memory) for row, memory in zip(rows, memories, strict=True) if not row.gave_up()]
        for row, _ in joining:
            if row.beams > 1:
                self._searches[row] = BeamSearch(row.beams, row.max_tokens, self._end, len(self._rows))
            self._rows.append(row)
        if joining:
            self._slots.admit([memory for _, memory in joining])

    def step(self) -> None:
        """Compute the next token of every row, notify the rows, and remove the finished ones."""
        for row in self.rows:
            row.gave_up()
        self._remove_finished()
        if not self._rows:
            return
        likeliest = self._slots.step()
        tokens = likeliest.tokens[:, 0].tolist()
        advanced: list[Row] = []
        searching: dict[Row, BeamSearch] = {}
        for place, (row, score) in enumerate(zip(self._rows, likeliest.scores[:, 0].tolist(), strict=True)):
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
            self._advance(row, search, likeliest, tokens)
        advanced += searching
        self.tokens += len(advanced)
        self._slots.choose(tokens)
        self._remove_finished()
        for row in advanced:
            row.on_tokens(row)

    def complete(self, rows: Sequence[Row]) -> None:
        """Encode and finish all rows, in the thread of the caller."""
        self.check(rows)
        waiting = list(rows)
        while waiting or not self.is_idle:
            waiting = [row for row in waiting if not row.gave_up()]
            capacity = self.capacity
            fitting = sum(places <= capacity for places in accumulate(row.beams for row in waiting))
            joining, waiting = waiting[:fitting], waiting[fitting:]
            if joining:
                self.add_requests(joining, self._engine.encode([row.source for row in joining]))
            self.step()

    def fail(self, error: Exception) -> None:
        """Finish and remove all rows with this error."""
        rows, self._rows = self.rows, []
        self._searches.clear()
        self._slots.used = 0
        for row in rows:
            row.finish("failed", error)

    def _advance(self, row: Row, search: BeamSearch, likeliest: Likeliest, tokens: list[int]) -> None:
        """Advance a search, and write the next token of each beam into `tokens`."""
        chosen = search.advance(likeliest)
        if not chosen:
            (row.tokens, row.score), *others = search.answers
            row.others = [other.tokens for other in others]
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
