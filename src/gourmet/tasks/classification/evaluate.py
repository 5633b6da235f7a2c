"""From a network's logits on every part of a data set to the numbers and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gourmet.runtime.files import written_aside
from gourmet.tasks.classification.accuracy import Accuracy, Classes, Scores, accuracy
from gourmet.tasks.classification.calibration import (
    Bin,
    Operating,
    calibration_error,
    choose_threshold,
    coverage_curve,
    fit_temperature,
    operating_at,
    reliability,
    softmax,
)
from gourmet.tasks.classification.evaluation_file import Calibration, write_evaluation


@dataclass(frozen=True)
class Answered:
    """A part of a data set and what the network said about it."""

    logits: Scores
    classes: Classes
    names: Sequence[str]
    picture: Callable[[int], bytes]  # the photo's own bytes, for the report


@dataclass(frozen=True)
class Measured:
    """What is known about one part."""

    answered: Answered
    accuracy: Accuracy
    before: list[Bin]
    after: list[Bin]
    curve: list[Operating]
    at_threshold: Operating
    views: dict[str, float]  # balanced accuracy over subsets of the classes

    def as_dict(self) -> dict[str, Any]:
        """For a report that another program reads."""
        return {
            **self.accuracy.as_dict(),
            "calibration_error_before": round(calibration_error(self.before), 4),
            "calibration_error_after": round(calibration_error(self.after), 4),
            "answered": round(self.at_threshold.coverage, 4),
            "right_of_answered": round(self.at_threshold.accuracy, 4),
            **{f"balanced over {name}": round(value, 4) for name, value in self.views.items()},
        }


@dataclass(frozen=True)
class Evaluation:
    """A temperature and a threshold, chosen on photos held out of training, and every part measured.

    Fulfils `gourmet.tasks.furniture.Evaluated`.
    """

    temperature: float
    threshold: float
    wanted: float  # the share of the answers above the threshold that should be right
    parts: dict[str, Measured]
    labels: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return {name: part.as_dict() for name, part in self.parts.items()}

    def lines(self) -> list[str]:
        parts = [
            f"{name}: balanced {part.accuracy.balanced:.3f} ± {part.accuracy.balanced_margin:.3f}, "
            f"top-1 {part.accuracy.top1:.3f}, top-3 {part.accuracy.top3:.3f}, {part.accuracy.photos} photos"
            for name, part in self.parts.items()
        ]
        return [*parts, f"temperature {self.temperature:.3f}, threshold {self.threshold:.2f}"]

    def write(self, weights: Path, title: str) -> Path:
        from gourmet.tasks.classification.evaluation_page import page

        report = weights.with_suffix(".report.html")
        with written_aside(report) as aside:
            aside.write_text(page(title, self), encoding="utf-8")
        write_evaluation(weights, Calibration(self.temperature, self.threshold), self.as_dict())
        return report


def evaluate(
    parts: Mapping[str, Answered],
    labels: Sequence[str],
    *,
    chosen_on: str,
    wanted: float,
    views: Mapping[str, Sequence[str]],
) -> Evaluation:
    """Choose temperature and threshold on the part `chosen_on`, then measure all parts with them.

    The threshold is the lowest at which `wanted` of the answers given are right.
    """
    base = parts[chosen_on]
    temperature = fit_temperature(base.logits, base.classes)
    curve = coverage_curve(softmax(base.logits, temperature), base.classes)
    threshold = choose_threshold(curve, wanted).threshold
    measured = {name: _measure(part, labels, temperature, threshold, views) for name, part in parts.items()}
    return Evaluation(temperature, threshold, wanted, measured, labels)


def _measure(
    part: Answered,
    labels: Sequence[str],
    temperature: float,
    threshold: float,
    views: Mapping[str, Sequence[str]],
) -> Measured:
    found = accuracy(part.logits, part.classes, labels)
    probabilities = softmax(part.logits, temperature)
    return Measured(
        answered=part,
        accuracy=found,
        before=reliability(softmax(part.logits), part.classes),
        after=reliability(probabilities, part.classes),
        curve=coverage_curve(probabilities, part.classes),
        at_threshold=operating_at(threshold, probabilities, part.classes),
        views={name: found.balanced_over(some) for name, some in views.items()},
    )


def worst(part: Answered, temperature: float, count: int) -> list[tuple[int, int, float]]:
    """Row, answer and probability of the mistakes made with the most confidence."""
    probabilities = softmax(part.logits, temperature)
    answers = probabilities.argmax(axis=1)
    sure = np.where(answers == part.classes, -1.0, probabilities.max(axis=1))
    rows = [int(row) for row in np.argsort(-sure)[:count] if sure[row] >= 0.0]
    return [(row, int(answers[row]), float(sure[row])) for row in rows]
