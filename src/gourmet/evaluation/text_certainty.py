"""Choose the score from which a generated text is sure, on held-out texts; measure it on others.

The score is the mean logarithm of the probability of a text's pieces, of its least likely sentence. Tried on
the translator's validation part, by the share that is sure at the same precision: the least likely piece, the
two least likely, sums, a mean of probabilities, and logistic regressions with the length, the pieces of a
word and the length of the answer beside the mean. None was better by more than its noise on the test part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.contracts import THRESHOLD_PARAMETER, GeneratedText, ModelInfo
from gourmet.evaluation.system_parts import Reference
from gourmet.reports.report import Section, Table

# An answer with a chrF of at least this is near to the reference by people.
NEAR: Final = 50.0
# The wanted share of near answers among the sure ones.
PRECISION: Final = 0.8
# No mean log probability reaches it: no answer is sure if the score does not predict near answers.
NEVER: Final = 1.0
# Standard errors in half an interval of 95 %.
ERRORS: Final = 1.96


@dataclass(frozen=True)
class Judged:
    """An answer, and whether it is close to a reference by people."""

    answer: GeneratedText
    is_near: bool

    @property
    def score(self) -> float:
        """Return the score that decides whether the text is sure; a text with a warning never is."""
        return float("-inf") if self.answer.warning or self.answer.worst is None else self.answer.worst


def judged(references: Sequence[Reference], answers: Sequence[GeneratedText]) -> list[Judged]:
    from sacrebleu.metrics.chrf import CHRF

    chrf = CHRF()
    return [
        Judged(answer, chrf.sentence_score(answer.text, [reference.answer]).score >= NEAR)
        for reference, answer in zip(references, answers, strict=True)
    ]


def certainty(chosen_on: str, parts: Mapping[str, Sequence[Judged]]) -> Section:
    """Choose a threshold on one part, and measure it on all parts."""
    answers = parts[chosen_on]
    threshold = chosen(
        [answer.score for answer in answers], [answer.is_near for answer in answers], PRECISION
    )
    measured = {name: _reliance(part, threshold) for name, part in parts.items()}
    sure = f"from a score of {threshold:.4f} on"
    if threshold == NEVER:
        sure = f"never: no score is high enough for {PRECISION:.0%} near answers"
    rows = [
        (
            name,
            f"{part['texts']:,}",
            *(f"{part[share]:.1%}" for share in ("sure", "near", "least", "near_of_all")),
            f"{part['doubtful']}",
        )
        for name, part in measured.items()
    ]
    return Section(
        measures={THRESHOLD_PARAMETER: threshold, "near": NEAR, "wanted": PRECISION, "parts": measured},
        facts=[("sure", sure), ("near", f"a chrF of at least {NEAR:g}")],
        tables=[
            Table(("", "texts", "sure", "of them near", "at least", "near of all", "with a warning"), rows)
        ],
    )


def chosen(scores: Sequence[float], near: Sequence[bool], goal: float, errors: float = ERRORS) -> float:
    """Return the lowest score above which the share of near answers reaches `goal`.

    The share has to exceed the goal by so many standard errors.
    """
    # A config has four decimal places.
    rounded = np.floor(1e4 * np.array(scores)) / 1e4
    order = np.argsort(-rounded, kind="stable")
    rounded, counts = rounded[order], np.arange(1, len(order) + 1)
    shares = np.cumsum(np.array(near)[order]) / counts
    is_last = np.append(rounded[1:] != rounded[:-1], [True])
    enough = np.flatnonzero(is_last & np.isfinite(rounded) & (_least(shares, counts, errors) >= goal))
    return float(rounded[enough[-1]]) if len(enough) else NEVER


def _reliance(answers: Sequence[Judged], threshold: float) -> dict[str, Any]:
    """Return how many answers are sure, and how many of those are near the reference."""
    model = ModelInfo("", (), (), {THRESHOLD_PARAMETER: str(threshold)})
    sure = [answer for answer in answers if model.is_sure(answer.answer)]
    near = float(np.mean([answer.is_near for answer in sure])) if sure else 0.0
    return {
        "texts": len(answers),
        "sure": len(sure) / len(answers),
        "near": near,
        # The lower end of the interval of 95 % around `near`.
        "least": float(_least(np.array([near]), np.array([len(sure)]), ERRORS)[0]) if sure else 0.0,
        "near_of_all": float(np.mean([answer.is_near for answer in answers])),
        "doubtful": sum(bool(answer.answer.warning) for answer in answers),
    }


def _least(shares: npt.NDArray[Any], counts: npt.NDArray[Any], errors: float) -> npt.NDArray[Any]:
    """Return the lower end of Wilson's interval around each share."""
    spread = errors * np.sqrt(shares * (1 - shares) / counts + (errors / counts) ** 2 / 4)
    lower_end: npt.NDArray[Any] = (shares + errors**2 / counts / 2 - spread) / (1 + errors**2 / counts)
    return lower_end
