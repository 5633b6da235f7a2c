"""How sure an answer about a picture is: probabilities of logits, their ranking, and what is sure.

numpy only: the web app, the served models, the training and the checks use it.
"""

from __future__ import annotations

import heapq
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

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


class RankedLabels:
    """An answer: its labels ranked by probability, and whether it is sure.

    `relevance` is the probability that the picture shows the system's subject; None if the model has none.
    `finer` has the best finer names, such as dishes, best first; empty if the model knows none.
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    threshold: float = 0.0
    relevance: float | None = None
    subject_threshold: float = 0.0
    finer: tuple[Named, ...] = ()
    likely: float = 0.0  # the probability from which on the best finer name is said
    perhaps: float = 0.0  # of the best two together, from which on both are said

    @cached_property
    def _best(self) -> list[int]:
        return heapq.nlargest(TOP, range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
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

    @property
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

    @property
    def sure(self) -> bool:
        reached = self.calibrated and self.probability >= self.threshold
        return self.relevant and not self.doubtful and reached

    @property
    def finer_name(self) -> str:
        """The finer name, if it is likely and the picture surely shows the subject; else empty."""
        may_be_said = self.finer and self.relevant and not self.doubtful and self.finer[0][1] >= self.likely
        return self.finer[0][0] if may_be_said else ""

    @property
    def finer_candidates(self) -> list[str]:
        """The best two finer names, if none is likely and one of the two is."""
        two = self.finer[:2]
        have_most = len(two) == 2 and sum(probability for _, probability in two) >= self.perhaps
        return [name for name, _ in two] if have_most and self.relevant and not self.finer_name else []

    @property
    def candidates(self) -> list[tuple[str, float]]:
        """The best two labels, if the answer is not sure and they share most of the probability."""
        two = self.top[:2]
        have_most = len(two) == 2 and sum(probability for _, probability in two) >= _TWO_LABELS
        return two if have_most and self.relevant and not self.sure else []
