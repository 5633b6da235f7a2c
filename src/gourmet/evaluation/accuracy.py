"""Measure accuracy and calibration of scores."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.pictures.certainty import softmax

Scores = npt.NDArray[np.float32]
Classes = npt.NDArray[np.integer[Any]]

_Z95: Final = 1.96
_BINS: Final = 15
_TEMPERATURES: Final = np.geomspace(0.2, 5.0, 241)
# The thresholds that the page offers, beside the chosen one.
_SHOWN: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class OfClass:
    """Recall and precision of one class."""

    label: str
    photos: int
    recall: float  # of its photos, answered so
    precision: float  # of such answers, right; nan where there is none


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of scores on photos. Balanced accuracy is the mean over classes."""

    photos: int
    top1: float
    top3: float
    top5: float
    balanced: float
    balanced_margin: float  # half the width of the 95 % confidence interval
    classes: tuple[OfClass, ...]  # those that occur
    confusion: npt.NDArray[np.int64]  # [true, answered]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Label, photos, recall and precision of each class, for a table."""
        return [
            (
                row.label,
                str(row.photos),
                f"{row.recall:.3f}",
                "–" if math.isnan(row.precision) else f"{row.precision:.3f}",
            )
            for row in self.classes
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "photos": self.photos,
            **{name: round(getattr(self, name), 4) for name in ("top1", "top3", "top5", "balanced")},
            "balanced_95": [round(self.balanced + side * self.balanced_margin, 4) for side in (-1, 1)],
            "per_class": {row.label: round(row.recall, 4) for row in self.classes},
        }


def accuracy(scores: Scores, classes: Classes, labels: Sequence[str]) -> Accuracy:
    """Measure `scores` [photos, classes] against the true `classes`."""
    ranked = np.argsort(-scores, axis=1, kind="stable")
    answers = ranked[:, 0]
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(confusion, (classes, answers), 1)
    counts = zip(labels, confusion.sum(axis=1), confusion.sum(axis=0), confusion.diagonal(), strict=True)
    rows = [
        OfClass(label, int(photos), float(right / photos), float(right / answered) if answered else math.nan)
        for label, photos, answered, right in counts
        if photos
    ]
    variance = sum(row.recall * (1.0 - row.recall) / row.photos for row in rows)
    hits = ranked == classes[:, np.newaxis]
    return Accuracy(
        photos=len(classes),
        top1=float(hits[:, 0].mean()),
        top3=float(hits[:, :3].any(axis=1).mean()),
        top5=float(hits[:, :5].any(axis=1).mean()),
        balanced=float(np.mean([row.recall for row in rows])),
        balanced_margin=_Z95 * math.sqrt(variance) / len(rows),
        classes=tuple(rows),
        confusion=confusion,
    )


def balanced_accuracy(answers: Classes, classes: Classes) -> float:
    """Return the mean recall of the classes that occur."""
    return float(np.mean([(answers[classes == c] == c).mean() for c in np.unique(classes)]))


@dataclass(frozen=True)
class OfOrigin:
    """Accuracy on the pictures from one source: the mean over the classes that it has."""

    origin: str
    photos: int
    balanced: float
    top1: float


# Names tell sources if there are two of at least so many pictures each.
_TELLING: Final = 5


def of_origins(answers: Classes, classes: Classes, origins: Sequence[str]) -> list[OfOrigin]:
    """Return accuracy by source, the largest source first; empty if names do not tell sources."""
    named = np.array(origins)
    rows = [
        OfOrigin(
            str(origin),
            int(of_origin.sum()),
            balanced_accuracy(answers[of_origin], classes[of_origin]),
            float(np.mean(answers[of_origin] == classes[of_origin])),
        )
        for origin in np.unique(named[named != ""])
        if (of_origin := named == origin).sum() >= _TELLING
    ]
    return sorted(rows, key=lambda row: -row.photos) if len(rows) > 1 else []


def by_origin(rows: Sequence[OfOrigin]) -> dict[str, Any]:
    """Return accuracy by source as plain data."""
    return {
        row.origin: {"photos": row.photos, "balanced": round(row.balanced, 4), "top1": round(row.top1, 4)}
        for row in rows
    }


@dataclass(frozen=True)
class Bin:
    """Answers of similar confidence."""

    photos: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Operating:
    """Coverage and accuracy if only answers of at least `threshold` are given."""

    threshold: float
    coverage: float
    accuracy: float


def fit_temperature(*parts: tuple[Scores, Classes]) -> float:
    """Return the temperature under which the true classes are likeliest, to within 1.4 %.

    Every part counts alike, and every class of it, whatever its share of the photos: which shares a user
    will send is not known.
    """

    def loss(logits: Scores, classes: Classes, temperature: float) -> float:
        likely = softmax(logits, temperature)[np.arange(len(classes)), classes]
        return -float(np.average(np.log(likely + 1e-12), weights=1.0 / np.bincount(classes)[classes]))

    losses = [sum(loss(*part, temperature) for part in parts) for temperature in _TEMPERATURES]
    return float(_TEMPERATURES[int(np.argmin(losses))])


def reliability(probabilities: Scores, classes: Classes) -> list[Bin]:
    """Sort answers into bins of equal width by their confidence, and leave out empty bins."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == classes
    where = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    return [
        Bin(int(in_bin.sum()), float(confidence[in_bin].mean()), float(right[in_bin].mean()))
        for in_bin in (where == index for index in range(_BINS))
        if in_bin.any()
    ]


def calibration_error(bins: list[Bin]) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy."""
    total = sum(one_bin.photos for one_bin in bins)
    return sum(one_bin.photos * abs(one_bin.confidence - one_bin.accuracy) for one_bin in bins) / total


def operating_at(threshold: float, probabilities: Scores, classes: Classes) -> Operating:
    """Return coverage and accuracy at a threshold; the accuracy is nan if no answer reaches it."""
    answered = probabilities.max(axis=1) >= threshold
    right = probabilities.argmax(axis=1) == classes
    accuracy = float(right[answered].mean()) if answered.any() else math.nan
    return Operating(threshold, float(answered.mean()), accuracy)


def coverage_curve(probabilities: Scores, classes: Classes) -> list[Operating]:
    """Return coverage and accuracy at each threshold in hundredths that some answer reaches."""
    points = [operating_at(hundredth / 100, probabilities, classes) for hundredth in range(100)]
    return [point for point in points if point.coverage]


def coverage_text(threshold: float, probabilities: Scores, classes: Classes) -> str:
    """Return coverage and accuracy at some thresholds and the chosen one, as JSON for a model's config."""
    points = [operating_at(level, probabilities, classes) for level in sorted({*_SHOWN, threshold})]
    return json.dumps(
        [[round(number, 4) for number in vars(point).values()] for point in points if point.coverage]
    )


def choose_threshold(curve: list[Operating], accuracy_goal: float) -> Operating:
    """Return the lowest threshold at which the accuracy reaches the goal, else the most accurate one."""
    enough = [point for point in curve if point.accuracy >= accuracy_goal]
    return enough[0] if enough else max(curve, key=lambda point: point.accuracy)
