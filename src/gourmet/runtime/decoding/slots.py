"""The rows that a loop has at work, side by side in memory, so that a step takes them all as they lie.

A row has the slot of its place, and one that leaves is replaced by the last. Buffers grow by doubling, and
shrink again, so that from one step to the next nothing is copied but what the step added; where all memories
have one size, they get exactly that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.runtime.decoding.engine import Engine, Floats, Integers, Likeliest

_FEWEST_PLACES: Final = 16
# With so many places for each token, half of them are given back.
_ROOMY: Final = 4


class Slots:
    """At most `max_rows` rows: their memories, their caches, their newest tokens."""

    def __init__(self, engine: Engine, max_rows: int, start: int) -> None:
        self._engine = engine
        self.max_rows = max_rows
        self._start = start
        rows = max(max_rows, engine.fewest_rows)
        self._shape = (0, 2, 0, 0)  # layers, keys and values, heads, size: the first memory says it
        self._memory = self._cache = self._blank(rows, 0)
        self._mask = np.zeros((rows, 0), np.int32)
        self._tokens = np.full(rows, start, np.int64)
        self._lengths = np.zeros(rows, np.int64)
        self._places = np.zeros(rows, np.int64)
        self.used = 0

    def admit(self, memories: Sequence[Floats]) -> None:
        """Rows that attend to these are the last ones from now on."""
        if not self._shape[0]:
            self._allocate(memories[0])
        longest = max(memory.shape[3] for memory in memories)
        self._fit_memory(max(longest, self._longest(self._places)))
        for memory in memories:
            row, places = self.used, memory.shape[3]
            self._memory[row, :, :, :, :places] = memory
            self._mask[row] = 0
            self._mask[row, :places] = 1
            self._tokens[row], self._lengths[row], self._places[row] = self._start, 0, places
            self.used += 1

    def step(self) -> Likeliest:
        """The likeliest next tokens of all rows; `choose` says which it shall be."""
        rows = max(self.used, self._engine.fewest_rows)
        self._cache = self._fitted(self._cache, self._longest(self._lengths) + 1)
        self._fit_memory(self._longest(self._places))
        inputs: tuple[Any, ...] = (self._tokens, self._lengths, self._cache, self._memory, self._mask)
        tokens, scores, added = self._engine.step(*(each[:rows] for each in inputs))
        every = np.arange(self.used)
        self._cache[every, :, :, :, self._lengths[: self.used]] = added[: self.used, :, :, :, 0]
        self._lengths[: self.used] += 1
        return Likeliest(tokens[: self.used], scores[: self.used], added[: self.used])

    def choose(self, tokens: Sequence[int]) -> None:
        self._tokens[: self.used] = tokens

    def copy(self, parents: Mapping[int, int]) -> None:
        """These rows have said from now on what their parents have; those behind the last are new, and the
        others attend to the same memory already, as beams do.
        """
        for row, parent in parents.items():
            said = int(self._lengths[parent])
            self._cache[row, :, :, :, :said] = self._cache[parent, :, :, :, :said]
            if row >= self.used:
                for each in (self._memory, self._mask, self._lengths, self._places):
                    each[row] = each[parent]
        self.used = max(self.used, *(row + 1 for row in parents))

    def leave(self, row: int) -> int:
        """Free this row's slot; the row that has it from now on was at the place that is returned."""
        self.used -= 1
        if row != self.used:
            for each in self._rows():
                each[row] = each[self.used]
        return self.used

    def _allocate(self, memory: Floats) -> None:
        layers, pair, heads, _, size = memory.shape
        self._shape = (layers, pair, heads, size)
        rows, places = len(self._tokens), self._engine.places or _FEWEST_PLACES
        self._memory, self._cache = self._blank(rows, places), self._blank(rows, _FEWEST_PLACES)
        self._mask = np.zeros((rows, places), np.int32)
        # An empty row attends to something, since nothing at all has no mean.
        self._mask[:, 0] = 1

    def _blank(self, rows: int, places: int) -> Floats:
        layers, pair, heads, size = self._shape
        if not self._engine.layers_apart:
            return np.zeros((rows, layers, pair, heads, places, size), np.float32)
        # The keys of a layer lie side by side, as a step takes them.
        return np.zeros((layers, pair, rows, heads, places, size), np.float32).transpose(2, 0, 1, 3, 4, 5)

    def _rows(self) -> tuple[npt.NDArray[Any], ...]:
        """All that belongs to a row."""
        return self._memory, self._mask, self._cache, self._lengths, self._places, self._tokens

    def _longest(self, lengths: Integers) -> int:
        return int(lengths[: self.used].max(initial=0))

    def _fit_memory(self, places: int) -> None:
        if self._engine.places:
            return
        before = self._mask.shape[1]
        self._memory = self._fitted(self._memory, places)
        if (after := self._memory.shape[4]) != before:
            self._mask = np.pad(self._mask, ((0, 0), (0, max(0, after - before))))[:, :after].copy()

    def _fitted(self, buffer: Floats, needed: int) -> Floats:
        """With places for so many: not many more, since every step goes through all of them."""
        there = places = buffer.shape[4]
        while places < needed:
            places *= 2
        while places > _FEWEST_PLACES and _ROOMY * needed <= places:
            places //= 2
        if places == there:
            return buffer
        other = self._blank(len(buffer), places)
        shared = min(there, places)
        other[:, :, :, :, :shared] = buffer[:, :, :, :, :shared]
        return other
