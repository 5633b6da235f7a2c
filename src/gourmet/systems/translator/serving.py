"""Open the translator in its served models. Each sentence of a text is a row."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gourmet.generation import package
from gourmet.generation.answers import Parts
from gourmet.generation.engine import Engine, Floats, Run
from gourmet.generation.loop import Row
from gourmet.systems.translator import contract
from gourmet.systems.translator.texts import split
from gourmet.systems.translator.tokenizer import Tokenizer

ENCODER: Final = "encoder.onnx"
DECODER: Final = "decoder.onnx"
# Pieces of words that a sentence may have; longer ones are cut.
MAX_SOURCE_TOKENS: Final = 120
# Measured: with short sentences encoded beside the loop too, eight clients got an eighth fewer translations.
_BRIEF_TOKENS: Final = 32


class MarianEngine(Engine):
    """Encodes sentences, whose sources are their token numbers."""

    def __init__(self, encoder: Run, decoder: Run, pad: int) -> None:
        super().__init__(encoder, decoder)
        self._pad = pad

    def is_brief(self, source: Sequence[int]) -> bool:
        return len(source) <= _BRIEF_TOKENS

    def encode(self, sources: Sequence[Sequence[int]]) -> Sequence[Floats]:
        words = max(map(len, sources))
        # See Engine.min_rows; several words are several rows for the kernels already.
        rows = len(sources) if words > 1 else max(len(sources), self.min_rows)
        ids, mask = np.full((rows, words), self._pad, np.int64), np.zeros((rows, words), np.int32)
        mask[:, 0] = 1
        for row, source in enumerate(sources):
            ids[row, : len(source)], mask[row, : len(source)] = source, 1
        (memory,) = self._encoder(["memory"], {"ids": ids, "mask": mask})
        return [memory[row, :, :, :, : len(source)] for row, source in enumerate(sources)]


class TranslatorNetwork:
    """Fulfils gourmet.generation.answers.ServedNetwork; as SERVING, GenerationServing."""

    out_of_time = "the text was not translated in time"
    outputs = staticmethod(contract.SYSTEM.outputs)

    def __init__(self, engine: MarianEngine, tokenizer: Tokenizer) -> None:
        self.engine, self.vocabulary = engine, tokenizer

    @classmethod
    def open(cls, files: Mapping[str, bytes], threads: int) -> TranslatorNetwork:
        with package.opened_as("a translator"):
            tokenizer = Tokenizer(files)
            engine = MarianEngine.of_graphs(files[ENCODER], files[DECODER], threads, tokenizer.pad)
            return cls(engine, tokenizer)

    def requested(self, inputs: Mapping[str, Sequence[Any]]) -> Sequence[Parts]:
        texts = [contract.text_of(row) for row in inputs[contract.TEXT]]
        options = contract.SYSTEM.limits_and_beams(inputs, len(texts))
        return [self.parts(text, *numbers) for text, numbers in zip(texts, options, strict=True)]

    def parts(self, text: str, max_tokens: int = contract.MAX_NEW_TOKENS, beams: int = 1) -> Parts:
        """Return the sentences of a text, each with its own limit, and the text between them."""
        numbers = functools.cache(self.vocabulary.encode)
        return [
            self._row(numbers(part.text), max_tokens, beams) if part.is_sentence else part.text
            for part in split(text, lambda piece: len(numbers(piece)), MAX_SOURCE_TOKENS)
        ]

    def _row(self, source: Sequence[int], max_tokens: int, beams: int) -> Row:
        """Return the row of a sentence. Its answer may have twice as many pieces and some."""
        return Row(source, min(max_tokens, 2 * len(source) + 20), beams=beams)


SERVING: Final = TranslatorNetwork
