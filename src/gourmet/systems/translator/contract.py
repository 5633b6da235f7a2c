"""The translators' contract, and that of ours: Russian in, English out.

`translator` answers whole, `translator_stream` piece by piece, `translator_bls` as the first does; their
inputs and outputs have the same names. One of another pair of languages is data: see described_parts.py.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final

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
    ScoredSentence,
    Task,
    Tensors,
    TooMuch,
    finite,
)
from gourmet.systems.translator import texts

TEXT: Final = "TEXT"
MAX_TOKENS: Final = "MAX_TOKENS"
BEAMS: Final = "BEAMS"
TRANSLATION: Final = "TRANSLATION"
TOKENS: Final = "TOKENS"
SCORE: Final = "SCORE"
# Of a whole answer and of the last piece: where each sentence begins and ends in it, and its score, as JSON.
SENTENCES: Final = "SENTENCES"

MOST_CHARACTERS: Final = 2000
# Each is a row of the loop, which a line of a single letter is too.
MOST_SENTENCES: Final = 100
# For each sentence; and what an option may be, and is unless it is given.
MAX_NEW_TOKENS: Final = 256
OPTIONS: Final = {"max_tokens": (1, MAX_NEW_TOKENS, MAX_NEW_TOKENS), "beams": (1, 4, 1)}
_EXAMPLES: Final = Path(__file__).with_name("examples.txt")
_LETTERS: Final = re.compile(r"[^\W\d_]")


def problem(text: str) -> str:
    """Why a text cannot be translated; empty if it can."""
    if len(text) > MOST_CHARACTERS:
        return f"the text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are translated at a time"
    # As the tokenizer reads it: some characters stand for up to eighteen.
    if (found := len(unicodedata.normalize("NFKC", text))) > 2 * MOST_CHARACTERS:
        return f"the text's characters stand for {found:,} others; at most {2 * MOST_CHARACTERS:,} are read"
    # Triton's Python backend takes NULs away from a text's end.
    if not text.replace("\0", " ").strip():
        return "the text is empty: send a sentence"
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


def sentences_of(text: str) -> int:
    """Return how many sentences a text may have; each is a row of the loop."""
    return texts.at_most(text)


def check_sentences(text: str) -> None:
    """Raise TooMuch where there are more than may be."""
    if (found := sentences_of(text)) > MOST_SENTENCES:
        raise TooMuch(
            f"the text has {found:,} sentences or lines; at most {MOST_SENTENCES} are translated at a time"
        )


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

    name: str
    title: str
    source: str  # the languages, as HTML names them
    target: str
    given: Sequence[str] = ()  # sentences to ask, of which the first is the sample
    task: Task = "generation"
    example_kind: ExampleKind = "text"
    early_warnings: ClassVar[Mapping[str, str]] = {}  # for a script, while one still writes

    @property
    def model_variable(self) -> str:
        return f"{self.name.upper()}_MODEL_NAME"

    @property
    def default_model(self) -> str:
        return self.name

    @property
    def streaming_model(self) -> str:
        """Answers piece by piece what the default model answers whole."""
        return f"{self.name}_stream"

    @property
    def metrics_prefix(self) -> str:
        return self.name

    @cached_property
    def meanings(self) -> Mapping[str, str]:
        """The sentences to ask, with what people say that each means; empty where nobody said it."""
        return dict.fromkeys(self.given, "")

    def sample(self) -> bytes:
        return self.given[0].encode()

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        """Everyday sentences; more than there are begin again in another order."""
        known = list(self.meanings)
        random = np.random.default_rng(seed)
        order = np.concatenate([random.permutation(len(known)) for _ in range(-(-count // len(known)))])
        return [known[place].encode() for place in order[:count]]

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        answer, asked = self.generated(outputs, model).text, self.sample().decode()
        if not _LETTERS.search(answer):
            raise BadAnswer(f"{model.name!r} answered {asked!r} with {answer!r}, which has no word in it")
        return f"«{asked}» → {answer}"

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        sent = self.written(text_of(example)).encode()
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

    def written(self, text: str) -> str:
        """A text as the network knows texts."""
        return text

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        try:
            text = outputs[TRANSLATION].ravel()[0]
            tokens, score = (outputs[name].ravel()[0] for name in (TOKENS, SCORE))
            said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            return GeneratedText(said, int(tokens), finite(score), sentences=_sentences(outputs))
        except (LookupError, TypeError, ArithmeticError, ValueError, RecursionError) as exc:
            raise BadAnswer(f"{model.name!r} does not answer as translators do: {exc}") from exc

    def with_warning(self, example: bytes, answer: GeneratedText) -> GeneratedText:
        return replace(answer, warning=self.doubt(text_of(example), answer.text))

    def foreign(self, text: str) -> str:
        """Why `text` is probably not of this language; empty where nothing is known of that."""
        return ""

    def doubt(self, text: str, translation: str) -> str:
        return "; ".join(texts.doubts(text, translation))


def _sentences(outputs: Tensors) -> Sequence[ScoredSentence] | None:
    """Read SENTENCES; return None for a piece, and for a model without that output."""
    if SENTENCES not in outputs:
        return None
    scored = json.loads(outputs[SENTENCES].ravel()[0])
    return [ScoredSentence(int(begin), int(end), finite(score)) for begin, end, score in scored]


class RussianTranslator(Translator):
    """Ours, of which more is known than the languages."""

    early_warnings = texts.FOR_SCRIPTS

    @cached_property
    def meanings(self) -> Mapping[str, str]:
        lines = _EXAMPLES.read_text(encoding="utf-8").splitlines()
        return dict(line.split("\t") for line in lines)

    def written(self, text: str) -> str:
        return texts.without_capitals(text)

    def foreign(self, text: str) -> str:
        return "" if texts.looks_russian(text) else texts.HARDLY_RUSSIAN

    def doubt(self, text: str, translation: str) -> str:
        return texts.warning(text, translation)


SYSTEM: Final = RussianTranslator("translator", "Translate", "ru", "en", ("Я люблю чай.",))
