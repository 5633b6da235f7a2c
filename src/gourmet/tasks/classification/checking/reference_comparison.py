"""The answers of a served model beside those of the network that it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.pictures.classifier import softmax
from gourmet.runtime import malloc
from gourmet.tasks import furniture
from gourmet.tasks.classification import evaluation
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.checking.asking import Asked, Served
from gourmet.tasks.classification.checking.pictures import Pictures
from gourmet.training.task import Tick

_WORST: Final = 10


@dataclass(frozen=True)
class Agreement:
    """How far a served model is from its network, over the pictures that it answered."""

    weights: Path
    pictures: int
    different: int  # answered with another class
    largest_difference: float  # of any probability
    worst: list[dict[str, Any]]  # pictures about which the two disagree, or agree least
    top1: float | None  # of the network itself, where there are labels

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Picture, answers of both, and how far apart, for a table."""
        return [
            (
                each["name"],
                f"{each['served']} {each['served_sure']:.3f}",
                f"{each['eager']} {each['eager_sure']:.3f}",
                f"{each['difference']:.1e}",
            )
            for each in self.worst
        ]


def compare(served: Served, pictures: Pictures, asked: Asked, weights: Path, tick: Tick) -> Agreement:
    """Ask the network in `weights` about all pictures that were answered."""
    malloc.use(malloc.TRAINING)
    network, _ = furniture.evaluation(served.info.system).load(weights)
    rows = np.flatnonzero(asked.answered).tolist()
    logits = evaluation.ask(network, served.contract, pictures.read(rows), len(rows), tick)
    return agreement(asked, softmax(logits, served.info.temperature), pictures, served.labels, weights)


def agreement(
    asked: Asked, theirs: Scores, pictures: Pictures, labels: tuple[str, ...], weights: Path
) -> Agreement:
    """Set the served answers against `theirs`, which are about the answered pictures, row by row."""
    there = np.flatnonzero(asked.answered)
    mine = asked.probabilities[there]
    apart = np.abs(mine - theirs).max(axis=1)
    best, right = mine.argmax(axis=1), theirs.argmax(axis=1)
    # Other classes first, and the largest differences first among them.
    order = np.lexsort((-apart, best == right))[:_WORST]
    return Agreement(
        weights=weights,
        pictures=len(there),
        different=int((best != right).sum()),
        largest_difference=float(apart.max()),
        worst=[
            {
                "name": pictures.names[there[row]],
                "served": labels[best[row]],
                "served_sure": float(mine[row].max()),
                "eager": labels[right[row]],
                "eager_sure": float(theirs[row].max()),
                "difference": float(apart[row]),
            }
            for row in order
        ],
        top1=None if pictures.classes is None else float(np.mean(right == pictures.classes[there])),
    )
