"""The captions as their served models open them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gourmet.systems.captions.contract import GRID, PROMPT, SYSTEM, WORDS, words_of

from gourmet.contracts import GeneratedText
from gourmet.generation.answers import Parts
from gourmet.generation.engine import Engine, Floats, Likeliest, Run
from gourmet.generation.loop import Row
from gourmet.pictures.decode import PictureError, Pixels, from_base64, square_pixels

# A test may slow the steps down, so that it sees pieces arrive one by one.
PAUSE_VARIABLE: Final = "CAPTIONS_PAUSE_S"


class CaptionEngine(Engine):
    """Sources are the files of pictures."""

    positions = GRID * GRID

    def __init__(self, vision: Run, decoder: Run) -> None:
        super().__init__(vision, decoder)
        self._pause_s = float(os.environ.get(PAUSE_VARIABLE, "0"))

    def encode(self, sources: Sequence[bytes]) -> Sequence[Floats]:
        squares = np.stack([_square(data) for data in sources])
        pixels = squares.reshape(len(sources), self.positions, 3).astype(np.float32) / 255
        (memory,) = self._encoder(["memory"], {"pixels": pixels})
        return list(memory)

    def step(self, *given: Any) -> Likeliest:
        time.sleep(self._pause_s)
        return super().step(*given)


def _square(data: bytes) -> Pixels:
    try:
        return square_pixels(from_base64(data), GRID)
    except PictureError as exc:  # as the web looks for it
        raise PictureError(exc.code, f"IMAGE row 0 of 1: {exc} [{exc.code}]") from exc


class Words:
    """Fulfils gourmet.generation.loop.Vocabulary."""

    start, end = 0, 1

    def encode(self, text: str) -> list[int]:
        return [WORDS.index(word) for word in words_of(text).split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(WORDS[token] for token in tokens)

    def settled(self, tokens: Sequence[int]) -> int:
        return len(tokens)


class ToyCaptionNetwork:
    """Fulfils gourmet.generation.answers.ServedNetwork; as SERVING, GenerationServing."""

    out_of_time = "the picture was not described in time"

    def __init__(self, engine: CaptionEngine) -> None:
        self.engine, self.vocabulary = engine, Words()

    @classmethod
    def open(cls, files: Mapping[str, bytes], threads: int) -> ToyCaptionNetwork:
        return cls(CaptionEngine.of_graphs(files["vision.onnx"], files["decoder.onnx"], threads))

    def requested(self, inputs: Mapping[str, Sequence[Any]]) -> Sequence[Parts]:
        images = inputs["IMAGE"]
        prompts = inputs.get("PROMPT") or [PROMPT.encode()] * len(images)
        options = SYSTEM.limits_and_beams(inputs, len(images))
        return [
            [Row(image, limit, prefix=self.vocabulary.encode(prompt.decode()), beams=beams)]
            for image, prompt, (limit, beams) in zip(images, prompts, options, strict=True)
        ]

    def outputs(self, answer: GeneratedText) -> Mapping[str, Any]:
        return {**SYSTEM.outputs(answer), "ALTERNATIVES": "\n".join(answer.others)}


SERVING: Final = ToyCaptionNetwork
