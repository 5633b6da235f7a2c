"""A picture-to-words system for the tests: pictures in, words out, by a made-up network of a few kilobytes.

No line of the app, the loop or the engines names it. What works for it works for any system that says in
words what a picture shows: memories of exactly 49 places, a prompt that is forced, limits and beams.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gourmet.contracts import (
    NO_OPTIONS,
    Array,
    BadAnswer,
    BadModel,
    ExampleKind,
    GeneratedText,
    ModelInfo,
    Options,
    Task,
    Tensors,
)
from gourmet.pictures.decode import identify
from gourmet.pictures.made_up import pictures

GRID: Final = 7
LIMITS: Final = {"max_tokens": (1, 24), "beams": (1, 4)}
PROMPT: Final = "a photograph of"
# What the network knows; the first two are the start and the end of every answer.
_KNOWN: Final = """
<start> <end> a photograph of the red green blue dark bright plate bowl table soup egg bread rice noodles meat
on in with and under beside small large round warm fresh
"""
WORDS: Final = tuple(_KNOWN.split())


@dataclass(frozen=True)
class ToyCaptions:
    """Fulfils gourmet.contracts.Generation."""

    name: str = "captions"
    task: Task = "generation"
    title: str = "Captions"
    model_variable: str = "CAPTIONS_MODEL_NAME"
    default_model: str = "captions"
    metrics_prefix: str = "captions"
    example_kind: ExampleKind = "picture"

    def sample(self) -> bytes:
        return self.examples(1, seed=0)[0]

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        return pictures(count, seed, side=32)

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        takes = {spec.name for spec in model.inputs}
        if "IMAGE" not in takes:
            raise BadModel(f"{model.name!r} has no input IMAGE: set {self.model_variable} to one that has")
        identify(example)  # raises a ValueError where it is not a picture
        shape = (1, 1) if model.max_batch_size else (1,)
        # What a decoupled model is asked goes over the wire as JSON, which has no bytes.
        image = base64.b64encode(example) if model.decoupled else example
        inputs: dict[str, Array] = {"IMAGE": np.full(shape, image, np.object_)}
        for name, value in options.items():
            if name.upper() not in takes or name == "image":
                raise ValueError(f"{name!r} is not an option of {model.name}")
            if name in LIMITS:
                inputs[name.upper()] = np.full(shape, limited(name, value), np.int32)
            else:
                inputs[name.upper()] = np.full(shape, words_of(str(value)).encode(), np.object_)
        return inputs

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        try:
            text, tokens, score = (outputs[name].ravel()[0] for name in ("CAPTION", "TOKENS", "SCORE"))
        except (KeyError, IndexError) as exc:
            raise BadAnswer(f"{model.name!r} does not answer with captions: {exc}") from exc
        return GeneratedText(text.decode() if isinstance(text, bytes) else text, int(tokens), float(score))

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        answer = self.generated(outputs, model).text
        if not answer.startswith(PROMPT):
            raise BadAnswer(f"{model.name!r} answered {answer!r}")
        return f"the sample shows {answer}"


def limited(name: str, value: object) -> int:
    least, most = LIMITS[name]
    if not least <= int(str(value)) <= most:
        raise ValueError(f"{name} is {value}; it has to be from {least} to {most}")
    return int(str(value))


def words_of(prompt: str) -> str:
    """The prompt, where the network knows all of its words."""
    if unknown := sorted(set(prompt.split()) - set(WORDS)):
        raise ValueError(f"the prompt has words that are not known: {', '.join(unknown)}")
    return prompt


SYSTEM: Final = ToyCaptions()
