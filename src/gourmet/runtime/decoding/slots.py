"""The rows that a loop has at work, side by side in memory, so that a step takes them all as they lie.

A row has the slot of its place. Who leaves is replaced by the last, and buffers grow by doubling, and shrink
again, so that from one step to the next nothing is copied but what the step added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.runtime.decoding.engine import Engine, Floats, Integers, Likeliest

_FEWEST_WORDS: Final = 16
# With so many places for each word, half of them are given back.
_ROOMY: Final = 4
# One row alone goes through other kernels, which round differently: an empty one goes with it.
_FEWEST_ROWS: Final = 2


class Slots:
    """At most `most` rows: their sources' memory, their cache, their newest words."""

    def __init__(self, engine: Engine, most: int, pad: int) -> None:
        self._engine = engine
        self.most = most
        self._pad = pad
        rows = max(most, _FEWEST_ROWS)
        self._memory = self._blank(rows, _FEWEST_WORDS)
        self._cache = self._blank(rows, _FEWEST_WORDS)
        self._mask = np.zeros((rows, _FEWEST_WORDS), np.int32)
        self._tokens = np.full(rows, pad, np.int64)
        self._lengths = np.zeros(rows, np.int64)
        self._source_lengths = np.zeros(rows, np.int64)
        # An empty row heeds something, since nothing at all has no mean.
        self._mask[:, 0] = 1
        self.used = 0

    def admit(self, sources: Sequence[Sequence[int]]) -> None:
        """Compute the memory of these sources; their rows are the last ones from now on."""
        words = max(map(len, sources))
        # As for a step; but words of one sentence go through the kernels of many rows already.
        rows = len(sources) if words > 1 else max(len(sources), _FEWEST_ROWS)
        ids, mask = np.full((rows, words), self._pad, np.int64), np.zeros((rows, words), np.int32)
        mask[:, 0] = 1
        for row, source in enumerate(sources):
            ids[row, : len(source)], mask[row, : len(source)] = source, 1
        memory = self._engine.encode(ids, mask)[: len(sources)]
        self._fit_memory(max(words, self._most(self._source_lengths)))
        here = slice(self.used, self.used + len(sources))
        self._memory[here, :, :, :, :words] = memory
        self._mask[here] = 0
        self._mask[here, :words] = mask[: len(sources)]
        self._tokens[here], self._lengths[here] = self._pad, 0
        self._source_lengths[here] = [len(source) for source in sources]
        self.used += len(sources)

    def step(self) -> Likeliest:
        """The likeliest next words of all rows; `choose` says which it shall be."""
        rows = max(self.used, _FEWEST_ROWS)
        self._cache = self._fitted(self._cache, self._most(self._lengths) + 1)
        self._fit_memory(self._most(self._source_lengths))
        tokens, scores, added = self._engine.step(
            self._tokens[:rows],
            self._lengths[:rows],
            self._cache[:rows],
            self._memory[:rows],
            self._mask[:rows],
        )
        every = np.arange(self.used)
        self._cache[every, :, :, :, self._lengths[: self.used]] = added[: self.used, :, :, :, 0]
        self._lengths[: self.used] += 1
        return Likeliest(tokens[: self.used], scores[: self.used], added[: self.used])

    def choose(self, tokens: Sequence[int]) -> None:
        self._tokens[: self.used] = tokens

    def rearrange(self, first: int, parents: Sequence[int]) -> None:
        """The rows from `first` on go on as copies of these, as beams do."""
        here = slice(first, first + len(parents))
        for each in (self._cache, self._lengths, self._tokens):
            each[here] = each[list(parents)]

    def repeat(self, row: int, times: int) -> None:
        """So many more rows of the same source, behind the last."""
        here = slice(self.used, self.used + times)
        for each in self._rows():
            each[here] = each[row]
        self.used += times

    def leave(self, row: int) -> int:
        """Free this row's slot; the row that has it from now on was at the place that is returned."""
        self.used -= 1
        if row != self.used:
            for each in self._rows():
                each[row] = each[self.used]
        return self.used

    def _blank(self, rows: int, words: int) -> Floats:
        layers, heads, size = self._engine.shape
        return np.zeros((rows, layers, 2, heads, words, size), np.float32)

    def _rows(self) -> tuple[npt.NDArray[Any], ...]:
        """All that belongs to a row."""
        return self._memory, self._mask, self._cache, self._lengths, self._source_lengths, self._tokens

    def _most(self, lengths: Integers) -> int:
        return int(lengths[: self.used].max(initial=0))

    def _fit_memory(self, words: int) -> None:
        before = self._mask.shape[1]
        self._memory = self._fitted(self._memory, words)
        if (after := self._memory.shape[4]) != before:
            self._mask = np.pad(self._mask, ((0, 0), (0, max(0, after - before))))[:, :after].copy()

    def _fitted(self, buffer: Floats, words: int) -> Floats:
        """With places for so many words: not many more, since every step goes through all of them."""
        there = places = buffer.shape[4]
        while places < words:
            places *= 2
        while places > _FEWEST_WORDS and _ROOMY * words <= places:
            places //= 2
        if places == there:
            return buffer
        other = self._blank(len(buffer), places)
        shared = min(there, places)
        other[:, :, :, :, :shared] = buffer[:, :, :, :, :shared]
        return other
