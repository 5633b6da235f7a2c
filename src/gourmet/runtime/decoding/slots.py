"""The buffers of the rows at work, side by side in memory, so that a step reads them without a copy.

A row's place is the index of its slot. The last row moves into the slot of a row that leaves. Buffers grow by
doubling and shrink again, so that a step copies only what it adds. If all memories have the same size, the
buffer has exactly this size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.runtime.decoding.engine import Engine, Floats, Integers, Likeliest

_MIN_PLACES: Final = 16
# A buffer with so many times the needed places shrinks by half.
_SHRINK_AT: Final = 4


class Slots:
    """Memories, caches and newest tokens of at most `max_rows` rows."""

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
        self._places = np.zeros(rows, np.int64)
        self.used = 0

    def admit(self, memories: Sequence[Floats]) -> None:
        """Add a row at the end for each memory."""
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
        """Return the likeliest next tokens of all rows; call `choose` with the chosen ones."""
        rows = max(self.used, self._engine.min_rows)
        self._cache = self._fitted(self._cache, self._longest(self._lengths) + 1)
        self._fit_memory(self._longest(self._places))
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
                for buffer in (self._memory, self._mask, self._lengths, self._places):
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
        rows, places = len(self._tokens), self._engine.places or _MIN_PLACES
        self._memory, self._cache = self._blank(rows, places), self._blank(rows, _MIN_PLACES)
        self._mask = np.zeros((rows, places), np.int32)
        # An empty row needs one place to attend to: a softmax over nothing is undefined.
        self._mask[:, 0] = 1

    def _blank(self, rows: int, places: int) -> Floats:
        layers, pair, heads, size = self._shape
        if not self._engine.layers_apart:
            return np.zeros((rows, layers, pair, heads, places, size), np.float32)
        # The keys of a layer lie side by side: they are one input of a step.
        return np.zeros((layers, pair, rows, heads, places, size), np.float32).transpose(2, 0, 1, 3, 4, 5)

    def _buffers(self) -> tuple[npt.NDArray[Any], ...]:
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
        """Return the buffer with enough places, but not many more, since a step reads all of them."""
        before = places = buffer.shape[4]
        while places < needed:
            places *= 2
        while places > _MIN_PLACES and _SHRINK_AT * needed <= places:
            places //= 2
        if places == before:
            return buffer
        resized = self._blank(len(buffer), places)
        kept = min(before, places)
        resized[:, :, :, :, :kept] = buffer[:, :, :, :, :kept]
        return resized
