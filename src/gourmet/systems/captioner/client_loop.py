"""The captioner's loop as a client turns it over one graph, with nothing kept between two words.

Every request carries the picture and all words so far, and is answered with numbers for every word of the
vocabulary at every place, of which the client looks at the last.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Final

import numpy as np

from gourmet import repository
from gourmet.measure.client_loop import Asking, ClientLoop
from gourmet.pictures.decode import squashed_pixels
from gourmet.runtime.decoding import package
from gourmet.systems.captioner.contract import CAPTION, SCORE, SYSTEM, TOKENS
from gourmet.systems.captioner.tokenizer import SETTINGS, WordPieces

SIDE: Final = 384
# By what BLIP's own processor normalises pictures.
MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
STD: Final = (0.26862954, 0.26130258, 0.27577711)
_MOST_WORDS: Final = 20


def served_files() -> dict[str, bytes]:
    """Of the newest package of this checkout."""
    folder = repository.DEFAULT / SYSTEM.default_model
    return package.read(folder / str(repository.versions(folder)[-1]) / package.FILE)


class CaptionerLoop:
    """Fulfils gourmet.measure.client_loop.ClientLoop."""

    def __init__(self, prompt: str | None = None) -> None:
        """Without a `prompt`, what is served has begins the caption."""
        self._prompt = prompt

    @cached_property
    def _served(self) -> tuple[WordPieces, int, str]:
        files = served_files()
        settings = json.loads(files[SETTINGS])
        prompt = self._prompt if self._prompt is not None else str(settings["prompt"])
        return WordPieces(files), int(settings["size"]), prompt

    def ask(self, example: bytes) -> Asking:
        tokenizer, size, prompt = self._served
        pixels = {"pixel_values": _normalised(squashed_pixels(example, size))}
        words = [tokenizer.start, *tokenizer.encode(prompt)]
        said, score = len(words), 0.0
        for _ in range(_MOST_WORDS):
            ids = np.array([words], np.int64)
            outputs = yield {**pixels, "input_ids": ids, "attention_mask": np.ones_like(ids)}
            scores = outputs["logits"][0, -1]
            token = int(scores.argmax())
            score -= float(np.log(np.exp(scores - scores[token]).sum()))
            if token == tokenizer.end:
                break
            words.append(token)
        answer = tokenizer.decode(words[1:])
        return {
            CAPTION: np.array([[answer.encode()]], np.object_),
            TOKENS: np.array([[len(words) - said]], np.int32),
            SCORE: np.array([[score]], np.float32),
        }


def _normalised(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """[1, 3, 384, 384], each pixel as often as it takes, so that the same are seen as by what is served."""
    times = SIDE // len(pixels)
    large = pixels.repeat(times, axis=0).repeat(times, axis=1).astype(np.float32) / 255
    planes = (large - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(planes.transpose(2, 0, 1)[np.newaxis])


CLIENT_LOOP: Final[ClientLoop] = CaptionerLoop()
