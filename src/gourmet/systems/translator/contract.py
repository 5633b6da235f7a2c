"""What all parts of the translator agree on: Russian in, English out.

`translator` answers whole, `translator_stream` piece by piece, `translator_bls` as the first does; their
inputs and outputs have the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    TooMuch,
)
from gourmet.systems.translator import texts

TEXT: Final = "TEXT"
MAX_TOKENS: Final = "MAX_TOKENS"
BEAMS: Final = "BEAMS"
TRANSLATION: Final = "TRANSLATION"
TOKENS: Final = "TOKENS"
SCORE: Final = "SCORE"

# Answers piece by piece what the default model answers whole.
STREAMING_MODEL: Final = "translator_stream"
MOST_CHARACTERS: Final = 2000
# Each is a row of the loop, which a line of a single letter is too.
MOST_SENTENCES: Final = 100
# For each sentence; and what an option may be, and is unless it is given.
MAX_NEW_TOKENS: Final = 256
OPTIONS: Final = {"max_tokens": (1, MAX_NEW_TOKENS, MAX_NEW_TOKENS), "beams": (1, 4, 1)}
EARLY_WARNINGS: Final[Mapping[str, str]] = texts.FOR_SCRIPTS
_SAMPLE: Final = "Я люблю чай."
_EXAMPLES: Final = Path(__file__).with_name("examples.txt")
_LETTERS: Final = re.compile(r"[^\W\d_]")


def problem(text: str) -> str:
    """Why a text cannot be translated; empty if it can."""
    if len(text) > MOST_CHARACTERS:
        return f"the text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are translated at a time"
    # Triton's Python backend takes NULs away from a text's end.
    if not text.replace("\0", " ").strip():
        return "the text is empty: send a Russian sentence"
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        return "the text has half a character in it (a lone surrogate), which is not valid: send whole ones"
    return ""


def text_of(value: object) -> str:
    """A row of TEXT as a served model gets it; raises ValueError, with what is wrong with it."""
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as exc:
        raise ValueError(f"{TEXT} is not UTF-8 from byte {exc.start} on") from exc
    if why := problem(text):
        raise ValueError(why)
    check_sentences(text)
    return text


def check_sentences(text: str) -> None:
    """Raise TooMuch where there are more than may be."""
    if (found := texts.at_most(text)) > MOST_SENTENCES:
        raise TooMuch(
            f"the text has {found:,} sentences or lines; at most {MOST_SENTENCES} are translated at a time"
        )


def example_meanings() -> Mapping[str, str]:
    """What people say that each example means."""
    lines = _EXAMPLES.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def options_of(name: str, values: Sequence[object], texts: int) -> list[int]:
    """An option for each text, as a served model gets it: given for each, or not at all."""
    least, most, usual = OPTIONS[name.lower()]
    if not values:
        return [usual] * texts
    if len(values) != texts:
        raise ValueError(f"{name} has {len(values)} values for {texts} texts: give one for each")
    found = [int(str(value)) for value in values]
    if wrong := [value for value in found if not least <= value <= most]:
        raise ValueError(f"{name} is {wrong[0]}; it has to be from {least} to {most}")
    return found


@dataclass(frozen=True)
class Translator:
    """Fulfils gourmet.contracts.Generation. Who takes a text from people asks `problem`, and the served model
    itself `text_of`, as `request_inputs` does.
    """

    name: str = "translator"
    task: Task = "generation"
    title: str = "Translate"
    model_variable: str = "TRANSLATOR_MODEL_NAME"
    default_model: str = "translator"
    metrics_prefix: str = "translator"
    example_kind: ExampleKind = "text"

    def sample(self) -> bytes:
        return _SAMPLE.encode()

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        """Everyday sentences; more than there are begin again in another order."""
        known = list(example_meanings())
        random = np.random.default_rng(seed)
        order = np.concatenate([random.permutation(len(known)) for _ in range(-(-count // len(known)))])
        return [known[place].encode() for place in order[:count]]

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        answer = self.generated(outputs, model).text
        if not _LETTERS.search(answer):
            raise BadAnswer(f"{model.name!r} answered {_SAMPLE!r} with {answer!r}, which has no word in it")
        return f"«{_SAMPLE}» → {answer}"

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        sent = texts.without_capitals(text_of(example)).encode()
        takes = {spec.name for spec in model.inputs}
        if TEXT not in takes:
            raise BadModel(
                f"{model.name!r} has no input {TEXT}, as translators have: set {self.model_variable} to one"
            )
        known = [name for name in OPTIONS if name.upper() in takes]
        shape = (1, 1) if model.max_batch_size else (1,)
        inputs: dict[str, Array] = {TEXT: np.full(shape, sent, np.object_)}
        for name, value in options.items():
            if name not in known:
                there = " and ".join(known) or "none"
                raise ValueError(f"{name!r} is not an option of {model.name}; it takes {there}")
            inputs[name.upper()] = np.array(options_of(name.upper(), [value], 1), np.int32).reshape(shape)
        return inputs

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        try:
            text = outputs[TRANSLATION].ravel()[0]
            tokens, score = (outputs[name].ravel()[0] for name in (TOKENS, SCORE))
        except (KeyError, IndexError) as exc:
            raise BadAnswer(f"{model.name!r} does not answer as translators do: {exc}") from exc
        said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        return GeneratedText(said, int(tokens), float(score))

    def with_warning(self, example: bytes, answer: GeneratedText) -> GeneratedText:
        return replace(answer, warning=texts.warning(text_of(example), answer.text))


SYSTEM: Final = Translator()
