"""The common members of contracts that generate text: an example and options in, a text and its score out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from gourmet.contracts import (
    NO_OPTIONS,
    Array,
    BadAnswer,
    BadModel,
    GeneratedText,
    ModelInfo,
    Options,
    Task,
    Tensors,
    finite,
)

MAX_TOKENS: Final = "MAX_TOKENS"
BEAMS: Final = "BEAMS"
TOKENS: Final = "TOKENS"
SCORE: Final = "SCORE"

# The smallest, largest and usual value of each option.
Limits = Mapping[str, tuple[int, int, int]]


def limits(max_tokens: int) -> Limits:
    return {"max_tokens": (1, max_tokens, max_tokens), "beams": (1, 4, 1)}


def plain(text: Any) -> str:
    """Return a text in an answer: Triton sends bytes, JSON text."""
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


class TextGenerator:
    """A base of contracts that fulfil gourmet.contracts.Generation."""

    task: ClassVar[Task] = "generation"
    example_input: ClassVar[str]
    answer_output: ClassVar[str]
    plural: ClassVar[str]  # in messages
    options: ClassVar[Limits]
    name: str

    @property
    def model_variable(self) -> str:
        return f"{self.name.upper()}_MODEL_NAME"

    @property
    def default_model(self) -> str:
        return self.name

    @property
    def streaming_model(self) -> str:
        """The model that answers piece by piece what the default model answers whole."""
        return f"{self.name}_stream"

    @property
    def metrics_prefix(self) -> str:
        return self.name

    def option_of(self, name: str, values: Sequence[object], rows: int) -> list[int]:
        """Return an option for each row of a request; raise ValueError unless all rows or none have it."""
        smallest, largest, usual = self.options[name.lower()]
        if not values:
            return [usual] * rows
        if len(values) != rows:
            raise ValueError(f"{name} has {len(values)} values for {rows} rows: give one for each")
        for value in values:
            if not (str(value).isdecimal() and smallest <= int(str(value)) <= largest):
                raise ValueError(f"{name} is {value}; it has to be from {smallest} to {largest}")
        return [int(str(value)) for value in values]

    def limits_and_beams(
        self, inputs: Mapping[str, Sequence[object]], rows: int
    ) -> Iterator[tuple[int, int]]:
        """Return the largest number of tokens and the beams for each row of a request."""
        columns = (self.option_of(name, inputs.get(name, ()), rows) for name in (MAX_TOKENS, BEAMS))
        return zip(*columns, strict=True)

    def text_option(self, name: str, value: object) -> bytes | None:
        """Return an option that is a text; None for others."""
        return None

    def tensors(self, value: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        """Return the inputs of a row; raise BadModel for another system's model, or ValueError."""
        names = {spec.name for spec in model.inputs}
        if self.example_input not in names:
            raise BadModel(
                f"{model.name!r} has no input {self.example_input}, as {self.plural} have: "
                f"set {self.model_variable} to one"
            )
        shape = (1, 1) if model.max_batch_size else (1,)
        # Not np.full, which drops zeros at the end of a picture.
        inputs: dict[str, Array] = {self.example_input: np.array([value], np.object_).reshape(shape)}
        for name, option in options.items():
            text = self.text_option(name, option)
            if name.upper() not in names or (text is None and name not in self.options):
                known = " and ".join(key for key in ("prompt", *self.options) if key.upper() in names)
                raise ValueError(f"{name!r} is not an option of {model.name}; it takes {known or 'none'}")
            if text is not None:
                inputs[name.upper()] = np.full(shape, text, np.object_)
            else:
                number = self.option_of(name.upper(), [option], 1)
                inputs[name.upper()] = np.array(number, np.int32).reshape(shape)
        return inputs

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        try:
            text, tokens, score = (outputs[name].ravel()[0] for name in (self.answer_output, TOKENS, SCORE))
            return GeneratedText(plain(text), int(tokens), finite(score), **self.other_fields(outputs))
        except (LookupError, TypeError, ArithmeticError, ValueError, RecursionError) as exc:
            raise BadAnswer(f"{model.name!r} does not answer as {self.plural} do: {exc}") from exc

    def other_fields(self, outputs: Tensors) -> dict[str, Any]:
        """Return the fields of an answer beside its text, tokens and score."""
        return {}

    def outputs(self, answer: GeneratedText) -> dict[str, Any]:
        """Return the outputs of a served model for an answer: the inverse of `generated`."""
        return {
            self.answer_output: answer.text,
            TOKENS: np.int32(answer.tokens or 0),
            SCORE: np.float32(answer.score or 0.0),
        }

    def answer_to_sample(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        """Return the answer; raise BadAnswer if it has no word."""
        answer = self.generated(outputs, model)
        if not any(map(str.isalpha, answer.text)):
            raise BadAnswer(
                f"{model.name!r} answered its sample with {answer.text!r}, which has no word in it"
            )
        return answer
