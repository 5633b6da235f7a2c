"""The captioner's contract: a photo in, a sentence out.

`captioner` answers whole and `captioner_stream` piece by piece; their inputs and outputs have the same names,
but that beams are only followed for whole answers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
    finite,
)
from gourmet.pictures.drawn import views

IMAGE: Final = "IMAGE"
PROMPT: Final = "PROMPT"
MAX_TOKENS: Final = "MAX_TOKENS"
BEAMS: Final = "BEAMS"
CAPTION: Final = "CAPTION"
TOKENS: Final = "TOKENS"
SCORE: Final = "SCORE"
# What a search found beside the caption, the better first: a line each. A stream has none.
ALTERNATIVES: Final = "ALTERNATIVES"

# Answers piece by piece what the default model answers whole.
STREAMING_MODEL: Final = "captioner_stream"
# What a caption may begin with, and how long it may be after that.
MOST_PROMPT_CHARACTERS: Final = 100
MOST_PROMPT_TOKENS: Final = 16
MAX_NEW_TOKENS: Final = 40
# What an option may be, and is unless it is given.
OPTIONS: Final = {"max_tokens": (1, MAX_NEW_TOKENS, MAX_NEW_TOKENS), "beams": (1, 4, 1)}
SAMPLE: Final = Path(__file__).with_name("sample.jpg")
_VIEW: Final = (400, 300)


def prompt_of(value: object) -> str:
    """A row of PROMPT; raises ValueError, with what is wrong with it."""
    try:
        prompt = value.decode() if isinstance(value, bytes) else str(value)
        prompt.encode()
    except UnicodeError as exc:
        raise ValueError(f"{PROMPT} is not UTF-8: {exc}") from exc
    if len(prompt) > MOST_PROMPT_CHARACTERS:
        raise ValueError(
            f"{PROMPT} has {len(prompt):,} characters; a caption begins with at most {MOST_PROMPT_CHARACTERS}"
        )
    return prompt.strip()


def option_of(name: str, value: object) -> int:
    """A row of MAX_TOKENS or BEAMS; raises ValueError where it is not one that may be."""
    least, most, _ = OPTIONS[name.lower()]
    try:
        found = int(str(value))
    except ValueError:
        found = 0
    if not least <= found <= most:
        raise ValueError(f"{name} is {value}; it has to be from {least} to {most}")
    return found


@dataclass(frozen=True)
class Captioner:
    """Fulfils gourmet.contracts.Generation. A picture is looked at by who takes it from people, and by the
    served model; `request_inputs` looks at the options.
    """

    name: str = "captioner"
    task: Task = "generation"
    title: str = "Caption"
    model_variable: str = "CAPTIONER_MODEL_NAME"
    default_model: str = "captioner"
    metrics_prefix: str = "captioner"
    example_kind: ExampleKind = "picture"

    def sample(self) -> bytes:
        return SAMPLE.read_bytes()

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        """Return `count` views of the sample: see gourmet.pictures.drawn."""
        return views(self.sample(), count, size=_VIEW, seed=seed)

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        answer = self.generated(outputs, model)
        if not any(map(str.isalpha, answer.text)):
            raise BadAnswer(
                f"{model.name!r} answered its sample with {answer.text!r}, which has no word in it"
            )
        return f"the sample shows: {answer.text}{' (not sure)' if model.is_sure(answer) is False else ''}"

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        takes = {spec.name for spec in model.inputs}
        if IMAGE not in takes:
            raise BadModel(
                f"{model.name!r} has no input {IMAGE}, as captioners have: set {self.model_variable} to one"
            )
        known = [name for name in ("prompt", *OPTIONS) if name.upper() in takes]
        shape = (1, 1) if model.max_batch_size else (1,)
        # What a decoupled model is asked goes over the wire as JSON, which has no bytes.
        image = base64.b64encode(example) if model.decoupled else example
        # np.full would leave out the zeros that a picture may end with.
        inputs: dict[str, Array] = {IMAGE: np.array([image], np.object_).reshape(shape)}
        for name, value in options.items():
            if name not in known:
                there = " and ".join(known) or "none"
                raise ValueError(f"{name!r} is not an option of {model.name}; it takes {there}")
            if name == "prompt":
                inputs[PROMPT] = np.full(shape, prompt_of(value).encode(), np.object_)
            else:
                inputs[name.upper()] = np.full(shape, option_of(name.upper(), value), np.int32)
        return inputs

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        try:
            text, tokens, score = (outputs[name].ravel()[0] for name in (CAPTION, TOKENS, SCORE))
            said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            return GeneratedText(said, int(tokens), finite(score), _others(outputs))
        except (LookupError, TypeError, ArithmeticError, ValueError) as exc:
            raise BadAnswer(f"{model.name!r} does not answer as captioners do: {exc}") from exc


def _others(outputs: Tensors) -> Sequence[str]:
    lines = outputs.get(ALTERNATIVES)
    text = b"" if lines is None else lines.ravel()[0]
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).splitlines()


SYSTEM: Final = Captioner()
