"""Accuracy out of scores: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
Classes = npt.NDArray[np.integer[Any]]

_Z95: Final = 1.96


@dataclass(frozen=True)
class OfClass:
    """How one class fared."""

    label: str
    photos: int
    recall: float  # of its photos, answered so
    precision: float  # of such answers, right; nan where there is none


@dataclass(frozen=True)
class Accuracy:
    """How well scores name the classes of photos. Balanced: the mean over classes, each counting alike."""

    photos: int
    top1: float
    top3: float
    top5: float
    balanced: float
    balanced_margin: float  # half the width of the 95 % confidence interval
    classes: tuple[OfClass, ...]  # those that occur
    confusion: npt.NDArray[np.int64]  # [true, answered]

    def balanced_over(self, labels: Sequence[str]) -> float:
        """Balanced accuracy over some classes alone; answers may be any class."""
        return float(np.mean([each.recall for each in self.classes if each.label in labels]))

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Label, photos, recall and precision of each class, for a table."""
        return [
            (
                each.label,
                str(each.photos),
                f"{each.recall:.3f}",
                "–" if math.isnan(each.precision) else f"{each.precision:.3f}",
            )
            for each in self.classes
        ]

    def as_dict(self) -> dict[str, Any]:
        """For a report that another program reads."""
        return {
            "photos": self.photos,
            "top1": round(self.top1, 4),
            "top3": round(self.top3, 4),
            "top5": round(self.top5, 4),
            "balanced": round(self.balanced, 4),
            "balanced_95": [
                round(self.balanced - self.balanced_margin, 4),
                round(self.balanced + self.balanced_margin, 4),
            ],
            "per_class": {each.label: round(each.recall, 4) for each in self.classes},
        }


def accuracy(scores: Scores, classes: Classes, labels: Sequence[str]) -> Accuracy:
    """Measure `scores` [photos, classes] against the true `classes`."""
    ranked = np.argsort(-scores, axis=1, kind="stable")
    answers = ranked[:, 0]
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(confusion, (classes, answers), 1)
    found = []
    variance = 0.0
    for index, label in enumerate(labels):
        photos, answered, right = confusion[index].sum(), confusion[:, index].sum(), confusion[index, index]
        if photos:
            recall = float(right / photos)
            found.append(
                OfClass(label, int(photos), recall, float(right / answered) if answered else math.nan)
            )
            variance += recall * (1.0 - recall) / float(photos)
    hits = ranked == classes[:, np.newaxis]
    return Accuracy(
        photos=len(classes),
        top1=float(hits[:, 0].mean()),
        top3=float(hits[:, :3].any(axis=1).mean()),
        top5=float(hits[:, :5].any(axis=1).mean()),
        balanced=float(np.mean([each.recall for each in found])),
        balanced_margin=_Z95 * math.sqrt(variance) / len(found),
        classes=tuple(found),
        confusion=confusion,
    )


def balanced_accuracy(answers: Classes, classes: Classes) -> float:
    """The mean over the classes that occur of the share answered rightly."""
    return float(np.mean([(answers[classes == c] == c).mean() for c in np.unique(classes)]))
