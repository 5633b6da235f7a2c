"""Open the captioner in its served models. Pictures are rows; each is encoded once.

A picture that is known to be harmless is decoded where its request is read; any other by a process that can
be ended (gourmet.pictures.decoders), for which a thread of the scheduler waits.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from gourmet.generation import package
from gourmet.generation.answers import Parts
from gourmet.generation.engine import Engine, Floats, Run
from gourmet.generation.loop import Row
from gourmet.pictures.decode import PictureError, Pixels, from_base64, squashed_pixels
from gourmet.pictures.decoders import decoding_for
from gourmet.pictures.header import parse_header
from gourmet.systems.captioner import contract
from gourmet.systems.captioner.tokenizer import SETTINGS, WordPieces

VISION: Final = "vision.onnx"
DECODER: Final = "decoder.onnx"


class CaptionerEngine(Engine):
    """Encodes the pixels of one picture at a time, so that a caption does not depend on other requests."""

    max_sources = 1

    def __init__(self, vision: Run, decoder: Run, positions: int) -> None:
        super().__init__(vision, decoder)
        self.positions = positions

    def encode(self, sources: Sequence[Pixels]) -> Sequence[Floats]:
        return [self._encoder(["memory"], {"pixels": pixels[np.newaxis]})[0][0] for pixels in sources]


class CaptionerNetwork:
    """Fulfils gourmet.generation.answers.ServedNetwork; as SERVING, GenerationServing."""

    out_of_time = "the picture was not described in time"
    outputs = staticmethod(contract.SYSTEM.outputs)

    def __init__(self, engine: CaptionerEngine, files: Mapping[str, bytes]) -> None:
        self.engine, self.vocabulary = engine, WordPieces(files)
        settings = json.loads(files[SETTINGS])
        self.side, self._max_tokens = int(settings["size"]), int(settings["max_tokens"])
        self._prompt = str(settings["prompt"])

    @classmethod
    def open(cls, files: Mapping[str, bytes], threads: int) -> CaptionerNetwork:
        with package.opened_as("a captioner"):
            positions = int(json.loads(files[SETTINGS])["places"])
            return cls(CaptionerEngine.of_graphs(files[VISION], files[DECODER], threads, positions), files)

    def requested(self, inputs: Mapping[str, Sequence[Any]]) -> Sequence[Parts]:
        images = inputs[contract.IMAGE]
        prompts = inputs.get(contract.PROMPT) or [self._prompt] * len(images)
        options = contract.SYSTEM.limits_and_beams(inputs, len(images))
        rows = [self._row(prompt, *numbers) for prompt, numbers in zip(prompts, options, strict=True)]
        for number, (row, image) in enumerate(zip(rows, images, strict=True)):
            where = f"{contract.IMAGE} row {number} of {len(images)}"
            with _refused(where):
                head = parse_header(from_base64(image))
                row.source = squashed_pixels(head, self.side) if head.is_harmless else head
            if not head.is_harmless:
                row.prepare = partial(self._decoded, where)
        return [[row] for row in rows]

    def _row(self, prompt: object, limit: int, beams: int) -> Row:
        prefix = self.vocabulary.encode(contract.prompt_of(prompt))
        if len(prefix) > contract.MAX_PROMPT_TOKENS:
            raise ValueError(
                f"{contract.PROMPT} has {len(prefix)} pieces of words; a caption begins with at most "
                f"{contract.MAX_PROMPT_TOKENS}"
            )
        max_tokens = min(limit, self._max_tokens)
        return Row(None, max_tokens, prefix=prefix, beams=beams)

    def _decoded(self, where: str, row: Row) -> Pixels:
        """Decode a photo in another process."""
        with _refused(where), decoding_for(row.deadline - time.monotonic(), row.gave_up, row.client):
            return squashed_pixels(row.source, self.side)


@contextlib.contextmanager
def _refused(where: str) -> Iterator[None]:
    """Name the row of a request that has this picture."""
    try:
        yield
    except PictureError as exc:
        raise PictureError(exc.code, f"{where}: {exc} [{exc.code}]") from exc


SERVING: Final = CaptionerNetwork
