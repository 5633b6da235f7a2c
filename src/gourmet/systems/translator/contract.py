"""The translators' contract, and that of ours: Russian in, English out.

`translator` answers whole, `translator_stream` piece by piece, `translator_bls` as the first does; their
inputs and outputs have the same names. One of another pair of languages is data: see described_parts.py.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from gourmet.contracts import (
    NO_OPTIONS,
    ExampleKind,
    GeneratedText,
    ModelInfo,
    Options,
    ScoredSentence,
    Tensors,
    TooMuch,
    finite,
)
from gourmet.generation.contract import TextGenerator, limits
from gourmet.systems.translator import texts

TEXT: Final = "TEXT"
TRANSLATION: Final = "TRANSLATION"
# In a whole answer and in the last piece: where each sentence begins and ends, and its score, as JSON.
SENTENCES: Final = "SENTENCES"

MAX_CHARACTERS: Final = 2000
# Each is a row of the loop, which a line of a single letter is too.
MAX_SENTENCES: Final = 100
MAX_NEW_TOKENS: Final = 256  # for each sentence
_EXAMPLES: Final = Path(__file__).with_name("examples.txt")


def problem(text: str) -> str:
    """Return why a text cannot be translated; empty if it can."""
    if len(text) > MAX_CHARACTERS:
        return f"the text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are translated at a time"
    # As the tokenizer reads it: some characters stand for up to eighteen.
    if (letters := len(unicodedata.normalize("NFKC", text))) > 2 * MAX_CHARACTERS:
        return f"the text's characters stand for {letters:,} others; at most {2 * MAX_CHARACTERS:,} are read"
    # Triton's Python backend takes NULs away from a text's end.
    if not text.replace("\0", " ").strip():
        return "the text is empty: send a sentence"
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        return "the text has half a character in it (a lone surrogate), which is not valid: send whole ones"
    return ""


def text_of(value: object) -> str:
    """Return a row of TEXT as a served model gets it; raise ValueError with its fault."""
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
    """Raise TooMuch if there are too many sentences."""
    if (count := sentences_of(text)) > MAX_SENTENCES:
        raise TooMuch(
            f"the text has {count:,} sentences or lines; at most {MAX_SENTENCES} are translated at a time"
        )


@dataclass(frozen=True)
class Translator(TextGenerator):
    """The web app checks a text with `problem`; the served model and `request_inputs` with `text_of`."""

    name: str
    title: str
    source: str  # the languages, as HTML names them
    target: str
    sentences: Sequence[str] = ()  # sentences to ask, of which the first is the sample
    example_kind: ExampleKind = "text"
    example_input = TEXT
    answer_output = TRANSLATION
    plural = "translators"
    options = limits(MAX_NEW_TOKENS)
    early_warnings: ClassVar[Mapping[str, str]] = {}  # for a script, while one still writes

    @cached_property
    def meanings(self) -> Mapping[str, str]:
        """Return the sentences to ask with their translations by people; empty if there is none."""
        return dict.fromkeys(self.sentences, "")

    def sample(self) -> bytes:
        return self.sentences[0].encode()

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        """Return everyday sentences; if too few, repeat them in another order."""
        known = list(self.meanings)
        random = np.random.default_rng(seed)
        order = np.concatenate([random.permutation(len(known)) for _ in range(-(-count // len(known)))])
        return [known[number].encode() for number in order[:count]]

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        return f"«{self.sample().decode()}» → {self.answer_to_sample(outputs, model).text}"

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        return self.tensors(self.written(text_of(example)).encode(), model, options)

    def written(self, text: str) -> str:
        """Normalise a text to the form that the network knows."""
        return text

    def other_fields(self, outputs: Tensors) -> dict[str, Any]:
        if SENTENCES not in outputs:  # a piece, or a model without that output
            return {}
        scored = json.loads(outputs[SENTENCES].ravel()[0])
        return {
            "sentences": [ScoredSentence(int(begin), int(end), finite(score)) for begin, end, score in scored]
        }

    def outputs(self, answer: GeneratedText) -> dict[str, Any]:
        outputs = super().outputs(answer)
        if answer.sentences is None:
            return outputs
        sentences = [(begin, end, round(score, 4)) for begin, end, score in answer.sentences]
        return {**outputs, SENTENCES: json.dumps(sentences)}

    def with_warning(self, example: bytes, answer: GeneratedText) -> GeneratedText:
        return replace(answer, warning=self.doubt(example.decode(), answer.text))

    def foreign(self, text: str) -> str:
        """Return why `text` is probably not of this language; empty if it may be."""
        return ""

    def doubt(self, text: str, translation: str) -> str:
        return "; ".join(texts.doubts(text, translation))


class RussianTranslator(Translator):
    """Our translator, with warnings about Russian texts."""

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
