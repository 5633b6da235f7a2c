"""Continuous batching: finished rows leave between two steps, and waiting rows join.

    loop = Loop(engine, vocabulary, 16)
    loop.add_requests(rows, memories)
    while not loop.is_idle:
        loop.step()

A row's tokens do not depend on the other rows. A row with beams needs as many free slots as beams when it
joins. The loop has no thread: `scheduler` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gourmet.errors import GourmetError
from gourmet.generation.engine import Engine, Floats, Integers, Likeliest

_MIN_POSITIONS: Final = 16
# A buffer with so many times the needed positions shrinks by half.
_SHRINK_AT: Final = 4
# The network ended the answer; it reached max_tokens; its deadline passed; its client disconnected; an error.
FinishReason = Literal["stop", "length", "deadline", "cancelled", "failed"]


class TooManyRows(GourmetError):
    """The queue of waiting rows is full."""


class Vocabulary(Protocol):
    """The tokens of a system's answers."""

    start: int  # the network's input before the first token of an answer
    end: int  # the token that ends an answer

    def decode(self, tokens: Sequence[int]) -> str: ...

    def settled(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of this unfinished answer have a text that later tokens cannot change."""


@dataclass(eq=False)
class Row:
    """A source and its answer, which begins with `prefix`. Only what the network adds counts as `tokens`."""

    source: Any  # the input of the engine's `encode`
    max_tokens: int
    prefix: Sequence[int] = ()
    beams: int = 1
    # Makes the source, if that may take long: the scheduler has threads for it.
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
    def __init__(self, engine: Engine, vocabulary: Vocabulary, max_rows: int) -> None:
        self._engine, self._batch = engine, BatchState(engine, max_rows, vocabulary.start)
        self._end = vocabulary.end
        # The row of each slot. A search has one slot at its first step, and then one for each beam.
        self._rows: list[Row] = []
        self._searches: dict[Row, BeamSearch] = {}
        # Sums since the start: tokens, rows that have a first token, and the time from arrival to that token.
        self.tokens, self.started, self.first_token_s = 0, 0, 0.0

    @property
    def capacity(self) -> int:
        """The number of free slots."""
        return self._batch.max_rows - sum(row.beams for row in self.rows)

    @property
    def rows(self) -> Sequence[Row]:
        return list(dict.fromkeys(self._rows))

    @property
    def is_idle(self) -> bool:
        return not self._rows

    def check_beams(self, rows: Sequence[Row]) -> None:
        """Raise ValueError if a row has more beams than the loop has slots."""
        beams, capacity = max((row.beams for row in rows), default=1), self._batch.max_rows
        if beams > capacity:
            raise ValueError(
                f"{beams} beams need as many rows of the loop, which has {capacity}: ask for fewer beams, or "
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
            self._batch.admit([memory for _, memory in joining])

    def step(self) -> None:
        """Compute the next token of every row, notify the rows, and remove the finished ones."""
        for row in self.rows:
            row.gave_up()
        self._remove_finished()
        if not self._rows:
            return
        likeliest = self._batch.step()
        tokens = likeliest.tokens[:, 0].tolist()
        advanced: list[Row] = []
        searching: dict[Row, BeamSearch] = {}
        for slot, (row, score) in enumerate(zip(self._rows, likeliest.scores[:, 0].tolist(), strict=True)):
            if row.forced < len(row.prefix):
                tokens[slot] = row.prefix[row.forced]
                row.forced += 1
                continue
            if row.beams > 1:
                searching[row] = self._searches[row]
                continue
            advanced.append(row)
            if not row.tokens:
                self.started += 1
                self.first_token_s += time.monotonic() - row.arrived
            row.score += score
            if tokens[slot] == self._end:
                row.finished = "stop"
            else:
                row.tokens.append(tokens[slot])
                if len(row.tokens) >= row.max_tokens:
                    row.finished = "length"
        for row, search in searching.items():
            self._advance(row, search, likeliest, tokens)
        advanced += searching
        self.tokens += len(advanced)
        self._batch.choose(tokens)
        self._remove_finished()
        for row in advanced:
            row.on_tokens(row)

    def complete(self, rows: Sequence[Row]) -> None:
        """Encode and finish all rows, in the thread of the caller."""
        self.check_beams(rows)
        waiting = list(rows)
        while waiting or not self.is_idle:
            waiting = [row for row in waiting if not row.gave_up()]
            capacity = self.capacity
            fitting = sum(beams <= capacity for beams in accumulate(row.beams for row in waiting))
            joining, waiting = waiting[:fitting], waiting[fitting:]
            if joining:
                self.add_requests(joining, self._engine.encode([row.source for row in joining]))
            self.step()

    def fail(self, error: Exception) -> None:
        """Finish and remove all rows with this error."""
        rows, self._rows = self.rows, []
        self._searches.clear()
        self._batch.used = 0
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
        more = range(len(self._rows), len(self._rows) + len(chosen) - len(search.slots))
        self._rows += [row] * len(more)
        tokens += [self._end] * len(more)
        if copied := search.move([*search.slots, *more], [parent for parent, _ in chosen]):
            self._batch.copy(copied)
        for slot, (_, token) in zip(search.slots, chosen, strict=True):
            tokens[slot] = token

    def _remove_finished(self) -> None:
        for slot in reversed(range(len(self._rows))):
            if self._rows[slot].finished:
                self._searches.pop(self._rows[slot], None)
                moved = self._batch.leave(slot)
                row = self._rows[slot] = self._rows[moved]
                self._rows.pop()
                if row.beams > 1 and not row.finished:
                    slots = self._searches[row].slots
                    slots[slots.index(moved)] = slot


class Hypothesis(NamedTuple):
    tokens: list[int]
    score: float  # the log probability of all tokens, the end included


class BeamSearch:
    """Find as many answers as there are beams, with the best mean log probability of a token.

    Each beam is a row of the loop. `slots` are the indices of these rows.
    """

    def __init__(self, beams: int, max_tokens: int, end: int, slot: int) -> None:
        """Begin with a single row, at `slot`."""
        self._beams, self._max_tokens, self._end = beams, max_tokens, end
        self.slots = [slot]  # of the unfinished hypotheses, the likeliest first
        self._unfinished = [Hypothesis([], 0.0)]
        self._whole: list[Hypothesis] = []
        self.answers: Sequence[Hypothesis] = ()  # at the end, the best first

    def advance(self, likeliest: Likeliest) -> Sequence[tuple[int, int]]:
        """Return the slot of the parent and the next token of each beam; nothing when the search is over."""
        beams, end = self._beams, self._end
        tokens, scores = (array[self.slots].tolist() for array in (likeliest.tokens, likeliest.scores))
        candidates = [
            (hypothesis.score + score, rank, token)
            for rank, hypothesis in enumerate(self._unfinished)
            for token, score in zip(tokens[rank], scores[rank], strict=True)
        ]
        candidates.sort(reverse=True)
        chosen: list[tuple[float, int, int]] = []
        for number, (score, rank, token) in enumerate(candidates[: 2 * beams]):
            if token == end:
                if number < beams:
                    self._whole.append(Hypothesis(self._unfinished[rank].tokens, score))
            elif len(chosen) < beams:
                chosen.append((score, rank, token))
        self._unfinished = [
            Hypothesis([*self._unfinished[rank].tokens, token], score) for score, rank, token in chosen
        ]
        if self._is_over():
            self.answers = sorted(self._whole or self._unfinished, key=_mean_score, reverse=True)[:beams]
            return ()
        return [(self.slots[rank], token) for _, rank, token in chosen]

    def _is_over(self) -> bool:
        best, length = self._unfinished[0], len(self._unfinished[0].tokens)
        if length >= self._max_tokens:
            return True
        # The mean score of an unfinished hypothesis never rises above the best one's now.
        return len(self._whole) >= self._beams and max(map(_mean_score, self._whole)) >= best.score / length

    def move(self, slots: Sequence[int], parents: Sequence[int]) -> Mapping[int, int]:
        """Give each beam one of these slots. Return the parent of each slot whose cache must be copied.

        The first child of a parent stays at the parent's slot.
        """
        unused = iter([slot for slot in slots if slot not in parents])
        copied: dict[int, int] = {}
        self.slots = []
        for parent in parents:
            slot = next(unused) if parent in self.slots else parent
            if slot != parent:
                copied[slot] = parent
            self.slots.append(slot)
        return copied


def _mean_score(hypothesis: Hypothesis) -> float:
    return hypothesis.score / (len(hypothesis.tokens) + 1)


class BatchState:
    """The memories, caches and newest tokens of at most `max_rows` rows, side by side in memory.

    A step reads them without a copy. A row's index is that of its slot. The last row moves into the slot
    of a row that leaves. Buffers grow by doubling and shrink again, so that a step copies only what it adds.
    If all memories have the same size, the buffer has exactly this size.
    """

    def __init__(self, engine: Engine, max_rows: int, start: int) -> None:
        self._engine = engine
        self.max_rows = max_rows
        self._start = start
        rows = max(max_rows, engine.min_rows)
        self._shape = (0, 2, 0, 0)  # layers, keys and values, heads, size: set by the first memory
        self._memory = self._cache = self._blank(rows, 0)
        self._mask = np.zeros((rows, 0), np.int32)
        self._tokens = np.full(rows, start, np.int64)
        self._lengths = np.zeros(rows, np.int64)
        self._positions = np.zeros(rows, np.int64)
        self.used = 0

    def admit(self, memories: Sequence[Floats]) -> None:
        """Add a row at the end for each memory."""
        if not self._shape[0]:
            self._allocate(memories[0])
        longest = max(memory.shape[3] for memory in memories)
        self._fit_memory(max(longest, self._longest(self._positions)))
        for memory in memories:
            row, positions = self.used, memory.shape[3]
            self._memory[row, :, :, :, :positions] = memory
            self._mask[row] = 0
            self._mask[row, :positions] = 1
            self._tokens[row], self._lengths[row], self._positions[row] = self._start, 0, positions
            self.used += 1

    def step(self) -> Likeliest:
        """Return the likeliest next tokens of all rows; call `choose` with the chosen ones."""
        rows = max(self.used, self._engine.min_rows)
        self._cache = self._fitted(self._cache, self._longest(self._lengths) + 1)
        self._fit_memory(self._longest(self._positions))
        inputs: tuple[Any, ...] = (self._tokens, self._lengths, self._cache, self._memory, self._mask)
        tokens, scores, added = self._engine.step(*(array[:rows] for array in inputs))
        used = np.arange(self.used)
        self._cache[used, :, :, :, self._lengths[: self.used]] = added[: self.used, :, :, :, 0]
        self._lengths[: self.used] += 1
        return Likeliest(tokens[: self.used], scores[: self.used], added[: self.used])

    def choose(self, tokens: Sequence[int]) -> None:
        self._tokens[: self.used] = tokens

    def copy(self, parents: Mapping[int, int]) -> None:
        """Copy each parent's cache to its row. A row behind the last one is new and gets the memory too.

        The other rows are beams of the same search, and have the memory already.
        """
        for row, parent in parents.items():
            length = int(self._lengths[parent])
            self._cache[row, :, :, :, :length] = self._cache[parent, :, :, :, :length]
            if row >= self.used:
                for buffer in (self._memory, self._mask, self._lengths, self._positions):
                    buffer[row] = buffer[parent]
        self.used = max(self.used, *(row + 1 for row in parents))

    def leave(self, row: int) -> int:
        """Move the last row into the slot of this row, and return the former index of the last row."""
        self.used -= 1
        if row != self.used:
            for buffer in self._buffers():
                buffer[row] = buffer[self.used]
        return self.used

    def _allocate(self, memory: Floats) -> None:
        layers, pair, heads, _, size = memory.shape
        self._shape = (layers, pair, heads, size)
        rows, positions = len(self._tokens), self._engine.positions or _MIN_POSITIONS
        self._memory, self._cache = self._blank(rows, positions), self._blank(rows, _MIN_POSITIONS)
        self._mask = np.zeros((rows, positions), np.int32)
        # An empty row needs one position to attend to: a softmax over nothing is undefined.
        self._mask[:, 0] = 1

    def _blank(self, rows: int, positions: int) -> Floats:
        layers, pair, heads, size = self._shape
        if not self._engine.layers_apart:
            return np.zeros((rows, layers, pair, heads, positions, size), np.float32)
        # The keys of a layer lie side by side: they are one input of a step.
        return np.zeros((layers, pair, rows, heads, positions, size), np.float32).transpose(2, 0, 1, 3, 4, 5)

    def _buffers(self) -> tuple[npt.NDArray[Any], ...]:
        return self._memory, self._mask, self._cache, self._lengths, self._positions, self._tokens

    def _longest(self, lengths: Integers) -> int:
        return int(lengths[: self.used].max(initial=0))

    def _fit_memory(self, positions: int) -> None:
        if self._engine.positions:
            return
        before = self._mask.shape[1]
        self._memory = self._fitted(self._memory, positions)
        if (after := self._memory.shape[4]) != before:
            self._mask = np.pad(self._mask, ((0, 0), (0, max(0, after - before))))[:, :after].copy()

    def _fitted(self, buffer: Floats, needed: int) -> Floats:
        """Return the buffer with enough positions, but not many more, since a step reads all of them."""
        before = positions = buffer.shape[4]
        while positions < needed:
            positions *= 2
        while positions > _MIN_POSITIONS and _SHRINK_AT * needed <= positions:
            positions //= 2
        if positions == before:
            return buffer
        resized = self._blank(len(buffer), positions)
        kept = min(before, positions)
        resized[:, :, :, :, :kept] = buffer[:, :, :, :, :kept]
        return resized
