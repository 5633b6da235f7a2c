"""Is a probability of 0.8 right eight times in ten? Measured, put right, and put to use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from gourmet.pictures.classifier import softmax
from gourmet.tasks.classification.accuracy import Classes, Scores

_BINS: Final = 15
_TEMPERATURES: Final = np.geomspace(0.2, 5.0, 241)


@dataclass(frozen=True)
class Bin:
    """Answers of similar confidence."""

    photos: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Operating:
    """What happens if only answers of at least `threshold` are given."""

    threshold: float
    coverage: float
    accuracy: float


def fit_temperature(logits: Scores, classes: Classes) -> float:
    """The temperature under which the true classes are likeliest, to within 1.4 %.

    Every class counts alike, whatever its share of the photos: which shares a user will send is not
    known.
    """
    weights = 1.0 / np.bincount(classes)[classes]
    rows = np.arange(len(classes))
    losses = [
        -np.average(np.log(softmax(logits, t)[rows, classes] + 1e-12), weights=weights) for t in _TEMPERATURES
    ]
    return float(_TEMPERATURES[int(np.argmin(losses))])


def reliability(probabilities: Scores, classes: Classes) -> list[Bin]:
    """Answers sorted into bins of equal width by their confidence; empty bins are left out."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == classes
    where = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    return [
        Bin(int(mine.sum()), float(confidence[mine].mean()), float(right[mine].mean()))
        for mine in (where == index for index in range(_BINS))
        if mine.any()
    ]


def calibration_error(bins: list[Bin]) -> float:
    """The expected calibration error: how far confidence and accuracy are apart, on average."""
    total = sum(each.photos for each in bins)
    return sum(each.photos * abs(each.confidence - each.accuracy) for each in bins) / total


def operating_at(threshold: float, probabilities: Scores, classes: Classes) -> Operating:
    """Coverage and accuracy at a threshold; the accuracy is nan where no answer reaches it."""
    given = probabilities.max(axis=1) >= threshold
    right = probabilities.argmax(axis=1) == classes
    accuracy = float(right[given].mean()) if given.any() else math.nan
    return Operating(threshold, float(given.mean()), accuracy)


def coverage_curve(probabilities: Scores, classes: Classes) -> list[Operating]:
    """Coverage and accuracy at every hundredth of a threshold that leaves an answer to give."""
    points = [operating_at(hundredth / 100, probabilities, classes) for hundredth in range(100)]
    return [point for point in points if point.coverage]


def choose_threshold(curve: list[Operating], wanted: float) -> Operating:
    """The lowest threshold at which `wanted` of the given answers are right, or the most accurate one."""
    enough = [point for point in curve if point.accuracy >= wanted]
    return enough[0] if enough else max(curve, key=lambda point: point.accuracy)
