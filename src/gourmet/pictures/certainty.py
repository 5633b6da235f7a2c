"""How sure an answer about a picture is: probabilities of logits, their ranking, and what is said.

numpy only: the web app, the served models, the training and the checks use it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gourmet.pictures.classifier import PictureClassifier

Floats = npt.NDArray[np.float32]
# A finer name than a label, such as that of a dish, and its probability.
Named = tuple[str, float]
TOP: Final = 5
# An unsure answer names two labels if their probabilities add up to this.
_TWO_LABELS: Final = 0.85
# A picture surely shows the subject from three quarters of the way between the model's threshold and 1.
# Measured on held-out sources, with a threshold of 0.48: 3 % of food and 11 % of other pictures are below it.
_SURELY: Final = 0.75


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Return the probabilities [rows, classes]; a temperature above 1 makes them less confident."""
    shifted = logits / np.float32(temperature)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    total: Floats = shifted.sum(axis=-1, keepdims=True)
    return np.asarray(shifted / total, dtype=np.float32)


def relevance(logits: Floats) -> Floats:
    """Return the probability [rows] of the subject against anything else, from the level of the logits."""
    level = np.logaddexp.reduce(logits, axis=-1)
    return np.asarray(np.exp(np.minimum(level, 0)) / (1 + np.exp(-np.abs(level))), dtype=np.float32)


def certain_subject_threshold(subject_threshold: float) -> float:
    """Return the relevance from which on a picture surely shows the subject."""
    return subject_threshold + _SURELY * (1.0 - subject_threshold)


State = Literal["sure", "not_sure", "doubtful", "irrelevant"]
# The sign and the colour of each state.
_SIGNS: Final[Mapping[State, tuple[str, str]]] = {
    "sure": ("✓", "green"),
    "not_sure": ("?", "yellow"),
    "doubtful": ("!", "orange"),
    "irrelevant": ("✕", "grey"),
}
# What is said of an answer, in English: a word for each state, and sentences.
WORDS: Final[Mapping[str, str]] = {
    "sure": "sure",
    "not_sure": "not sure",
    "doubtful": "perhaps not {subject}",
    "irrelevant": "not {subject}",
    "is_doubtful": "Not sure this is {what}",
    "is_irrelevant": "This does not look like {what}",
    "closest": "If it is {what}, the closest class is {label}.",
    "or": "{one} or {other}",
    "perhaps": "Perhaps {what}.",
    "uncalibrated": "Not calibrated: `gourmet check --calibrate` measures the threshold of this model.",
    "two": "These two share most of the probability.",
    "below": "Below the {threshold} that make an answer sure: a closer photo may help.",
}


class Verdict(NamedTuple):
    """What is said of an answer, in the same words on every page, in every table and in the API.

    `probability` is that of the class, or of the likelier one of two; None if no class is said.
    """

    state: State
    sign: str
    colour: str
    word: str
    text: str  # the dish, the class, two classes, or that it may show something else
    kind: str = ""  # the class or classes of the dish in `text`
    hint: str = ""
    probability: float | None = None


def marks(subject: str, words: Mapping[str, str] = WORDS) -> dict[State, tuple[str, str, str]]:
    """Return the sign, the colour and the word of each state."""
    return {state: (*signs, words[state].format(subject=subject)) for state, signs in _SIGNS.items()}


@dataclass(frozen=True)
class RankedLabels:
    """An answer: its labels ranked by probability, and whether it is sure.

    `relevance` is the probability that the picture shows the system's subject; None if the model has none.
    `finer` has the best finer names, such as dishes, best first; empty if the model knows none.
    """

    system: PictureClassifier
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    threshold: float = 0.0
    relevance: float | None = None
    subject_threshold: float = 0.0
    finer: tuple[Named, ...] = ()

    @cached_property
    def _best(self) -> list[int]:
        return heapq.nlargest(TOP, range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @cached_property
    def top(self) -> list[tuple[str, float]]:
        """The likeliest labels with their probabilities, best first."""
        return [(self.labels[index], self.probabilities[index]) for index in self._best]

    @property
    def label(self) -> str:
        return self.labels[self.class_id]

    @property
    def class_id(self) -> int:
        return self._best[0]

    @property
    def probability(self) -> float:
        return self.probabilities[self.class_id]

    @property
    def relevant(self) -> bool:
        """True if the picture shows the subject, as far as the model can tell."""
        return self.relevance is None or self.relevance >= self.subject_threshold

    @cached_property
    def doubtful(self) -> bool:
        """True if the picture may show something else than the subject."""
        return (
            self.relevance is not None
            and self.relevant
            and self.relevance < certain_subject_threshold(self.subject_threshold)
        )

    @property
    def calibrated(self) -> bool:
        """True if the threshold was measured, so that an answer may be sure."""
        return self.threshold > 0

    @cached_property
    def sure(self) -> bool:
        reached = self.calibrated and self.probability >= self.threshold
        return self.relevant and not self.doubtful and reached

    @property
    def finer_name(self) -> str:
        """The finer name, if it is likely and the picture surely shows the subject; else empty."""
        may_be_said = self.finer and self.relevant and not self.doubtful
        return self.finer[0][0] if may_be_said and self.finer[0][1] >= self.system.likely else ""

    @property
    def finer_candidates(self) -> list[str]:
        """The best two finer names, if none is likely and one of the two is."""
        two = self.finer[:2]
        have_most = len(two) == 2 and sum(probability for _, probability in two) >= self.system.perhaps
        return [name for name, _ in two] if have_most and self.relevant and not self.finer_name else []

    @cached_property
    def candidates(self) -> list[tuple[str, float]]:
        """The best two labels, if the answer is not sure and they share most of the probability."""
        two = self.top[:2]
        have_most = len(two) == 2 and sum(probability for _, probability in two) >= _TWO_LABELS
        return two if have_most and self.relevant and not self.sure and self.applying is None else []

    @property
    def applying(self) -> list[tuple[str, float]] | None:
        """The labels that are sure, best first, where a picture may have several."""
        if not self.system.multi_label:
            return None
        pairs = zip(self.labels, self.probabilities, strict=True)
        return sorted((pair for pair in pairs if pair[1] >= self.threshold), key=lambda pair: -pair[1])

    @property
    def verdict(self) -> Verdict:
        """What is said of this answer, in English."""
        return self.say(WORDS, {})

    def say(self, words: Mapping[str, str], names: Mapping[str, str]) -> Verdict:
        """Return what is said of this answer, in the language of `words` and `names`."""

        def called(*given: str) -> str:
            first, *more = [names.get(name, name) for name in given]
            return words["or"].format(one=first, other=more[0]) if more else first

        subject = self.system.subject
        signs = marks(called(subject), words)
        if not self.relevant or self.doubtful:
            state: State = "doubtful" if self.doubtful else "irrelevant"
            what = called(self.system.subject_in_words or subject)
            hint = words["closest"].format(what=what, label=called(self.label))
            return Verdict(state, *signs[state], words[f"is_{state}"].format(what=what), hint=hint)
        state = "sure" if self.sure else "not_sure"
        said = ", ".join(called(label) for label, _ in self.applying or ()) or called(self.label)
        if self.candidates:
            said = called(*(label for label, _ in self.candidates))
        text, kind = (called(self.finer_name), said) if self.finer_name else (said, "")
        hints = []
        if self.finer_candidates:
            hints.append(words["perhaps"].format(what=called(*self.finer_candidates)))
        if not self.calibrated:
            hints.append(words["uncalibrated"])
        elif self.candidates:
            hints.append(words["two"])
        elif not self.sure:
            hints.append(words["below"].format(threshold=f"{self.threshold:.0%}"))
        return Verdict(state, *signs[state], text, kind, " ".join(hints), self.probability)
