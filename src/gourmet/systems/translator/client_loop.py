"""The translator's loop in a client, over a model that computes whole steps and keeps no state.

Every request carries all words so far and is answered with numbers for every word of the vocabulary at every
place, of which the client looks at one row.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from gourmet.bench.inputs import Asking, ClientLoop
from gourmet.generation.contract import SCORE, TOKENS
from gourmet.repository.versions import served_package
from gourmet.systems.translator.contract import SYSTEM, TRANSLATION
from gourmet.systems.translator.tokenizer import Tokenizer

# Places of a source and a target, and what stands in those that are free, as the first clients have it.
PLACES: Final = 50
EMPTY: Final = 1


class TranslatorLoop:
    """Fulfils gourmet.bench.inputs.ClientLoop."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(served_package(SYSTEM.default_model))

    def steps_of(self, example: bytes) -> Asking:
        tokenizer = self.tokenizer
        source = np.full((1, PLACES), EMPTY, np.int32)
        ids = tokenizer.encode(example.decode())[:PLACES]
        source[0, : len(ids)] = ids
        target = np.full((1, PLACES), EMPTY, np.int32)
        target[0, 0] = tokenizer.pad
        tokens: list[int] = []
        score = 0.0
        for position in range(PLACES):
            outputs = yield {"source": source, "target": target.copy()}
            scores = outputs["output"][0, position].copy()
            scores[tokenizer.pad] = -np.inf
            token = int(scores.argmax())
            score -= float(np.log(np.exp(scores - scores[token]).sum()))
            if token == tokenizer.end:
                break
            tokens.append(token)
            target[0, position + 1 : position + 2] = token
        return {
            TRANSLATION: np.array([[tokenizer.decode(tokens).encode()]], np.object_),
            TOKENS: np.array([[len(tokens)]], np.int32),
            SCORE: np.array([[score]], np.float32),
        }


CLIENT_LOOP: Final[ClientLoop] = TranslatorLoop()
