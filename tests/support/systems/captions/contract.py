"""A picture-to-words system for the tests: pictures in, words out, by a made-up network of a few kilobytes.

No line of the app, the loop or the engines names it. What works for it works for any system that says in
words what a picture shows: memories of exactly 49 positions, a prompt that is forced, limits and beams.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

from gourmet.contracts import NO_OPTIONS, BadAnswer, ExampleKind, ModelInfo, Options, Tensors
from gourmet.generation.contract import TextGenerator, limits
from gourmet.pictures.decode import identify
from gourmet.pictures.made_up import pictures

GRID: Final = 7
PROMPT: Final = "a photograph of"
# What the network knows; the first two are the start and the end of every answer.
_KNOWN: Final = """
<start> <end> a photograph of the red green blue dark bright plate bowl table soup egg bread rice noodles meat
on in with and under beside small large round warm fresh
"""
WORDS: Final = tuple(_KNOWN.split())


class ToyCaptions(TextGenerator):
    """Fulfils gourmet.contracts.Generation."""

    name = "captions"
    title = "Captions"
    example_kind: ExampleKind = "picture"
    example_input = "IMAGE"
    answer_output = "CAPTION"
    plural = "captions"
    options = limits(24)

    def sample(self) -> bytes:
        return self.examples(1, seed=0)[0]

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        return pictures(count, seed, side=32)

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        identify(example)  # raises a ValueError where it is not a picture
        return self.tensors(base64.b64encode(example) if model.decoupled else example, model, options)

    def text_option(self, name: str, value: object) -> bytes | None:
        return words_of(str(value)).encode() if name == "prompt" else None

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        answer = self.answer_to_sample(outputs, model).text
        if not answer.startswith(PROMPT):
            raise BadAnswer(f"{model.name!r} answered {answer!r}")
        return f"the sample shows {answer}"


def words_of(prompt: str) -> str:
    """The prompt, where the network knows all of its words."""
    if unknown := sorted(set(prompt.split()) - set(WORDS)):
        raise ValueError(f"the prompt has words that are not known: {', '.join(unknown)}")
    return prompt


SYSTEM: Final = ToyCaptions()
