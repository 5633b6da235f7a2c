"""Compare a served classifier's answers with its answers to single pictures, and with its network's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.contracts import ModelInfo
from gourmet.pictures.classifier import PictureClassifier, surely
from gourmet.runtime.manifest import MANIFEST, sha256
from gourmet.runtime.reading import read_table
from gourmet.tasks.checking import CheckOptions
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.checked_pictures import CheckedPictures

# Rows computed in a batch of another size differ in the last digits; on a GPU in half precision, by 0.005.
_SAME_WITHIN: Final = 0.02
_WORST: Final = 10


@dataclass(frozen=True)
class ServedClassifier:
    """A classifier, and the contract of its system."""

    info: ModelInfo
    contract: PictureClassifier

    @property
    def labels(self) -> tuple[str, ...]:
        return self.contract.labels_of(self.info)


@dataclass(frozen=True)
class BatchAnswer:
    """The answers to the pictures of one request."""

    first: int  # of the pictures
    probabilities: list[list[float]]
    relevance: list[float] | None
    version: str


@dataclass(frozen=True)
class PictureAnswers:
    """The answers to all pictures. Rows without an answer are nan."""

    probabilities: Scores
    relevance: Scores  # [pictures]; nan also where the model does not give it
    versions: frozenset[str] = frozenset()

    @classmethod
    def joined(cls, answers: Sequence[BatchAnswer], pictures: int, labels: int) -> PictureAnswers:
        rows = np.full((pictures, labels + 1), np.nan, dtype=np.float32)
        for answer in answers:
            mine = rows[answer.first : answer.first + len(answer.probabilities)]
            mine[:, :labels] = answer.probabilities
            if answer.relevance is not None:
                mine[:, labels] = answer.relevance
        return cls(rows[:, :labels], rows[:, labels], frozenset(answer.version for answer in answers))

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Mark the rows that have an answer."""
        answered: npt.NDArray[np.bool_] = ~np.isnan(self.probabilities[:, 0])
        return answered

    def acted_on(self, subject_threshold: float) -> Scores:
        """The answered pictures' probabilities as they are acted on: zero for what may not be relevant."""
        answered = self.there
        return (
            self.probabilities[answered]
            * ~(self.relevance[answered] < surely(subject_threshold))[:, np.newaxis]
        )


@dataclass(frozen=True)
class AskedAgain:
    """Agreement of two answers about the same pictures: in a batch, and alone."""

    pictures: int
    largest_difference: float
    different: tuple[str, ...]  # names of pictures that got another answer alone, and whose it was
    refused: tuple[str, ...] = ()  # names of pictures that got none alone, and why

    @classmethod
    def compared(
        cls, in_batches: PictureAnswers, alone: PictureAnswers, names: Sequence[str], refused: tuple[str, ...]
    ) -> AskedAgain:
        largest, different = 0.0, []
        rows = np.flatnonzero(alone.there)
        for row in rows:
            apart = np.abs(in_batches.probabilities - alone.probabilities[row]).max(axis=1)
            nearest = int(np.nanargmin(apart))
            largest = max(largest, float(apart[row]))
            if apart[row] > _SAME_WITHIN:
                is_swapped = apart[nearest] <= _SAME_WITHIN
                whose = f" (its answer went to {names[nearest]})" if is_swapped else ""
                different.append(f"{names[row]}{whose}")
        return cls(len(rows) + len(refused), largest, tuple(different), refused)


@dataclass(frozen=True)
class Agreement:
    """Agreement of a served model with its network or another model, on the pictures that both answered."""

    other: str  # the file of the network, or the other model
    pictures: int
    different: int  # answered with another class
    largest_difference: float  # of any probability
    worst: list[dict[str, Any]]  # pictures about which the two disagree, or agree least
    top1: float | None  # of the other, where there are labels

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Picture, answers of both, and how far apart, for a table."""
        return [
            (
                row["name"],
                f"{row['served']} {row['served_sure']:.3f}",
                f"{row['other']} {row['other_sure']:.3f}",
                f"{row['difference']:.1e}",
            )
            for row in self.worst
        ]


def exported_weights(model: ModelInfo, version: str, options: CheckOptions) -> Path | str:
    """Return the weights that a served version was exported from, or a reason why they are not known."""
    manifest = options.repository / model.name / version / MANIFEST
    runs = options.runs / model.system
    try:
        digest = read_table(manifest)["training"]["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{manifest} does not name the weights that were exported: name them with --eager"
    for path in sorted(runs.glob("*.safetensors")):
        if sha256(path) == digest:
            return path
    return (
        f"the weights {digest[:12]}… that version {version} was exported from are not in {runs}: "
        "name them with --eager"
    )


def agreement(
    answers: PictureAnswers, theirs: Scores, pictures: CheckedPictures, labels: tuple[str, ...], other: str
) -> Agreement:
    """Compare the served answers with `theirs`, the other probabilities of the answered pictures."""
    answered = np.flatnonzero(answers.there)
    mine = answers.probabilities[answered]
    apart = np.abs(mine - theirs).max(axis=1)
    best, right = mine.argmax(axis=1), theirs.argmax(axis=1)
    # Other classes first, and the largest differences first among them.
    order = np.lexsort((-apart, best == right))[:_WORST]
    return Agreement(
        other=other,
        pictures=len(answered),
        different=int((best != right).sum()),
        largest_difference=float(apart.max()),
        worst=[
            {
                "name": pictures.names[answered[row]],
                "served": labels[best[row]],
                "served_sure": float(mine[row].max()),
                "other": labels[right[row]],
                "other_sure": float(theirs[row].max()),
                "difference": float(apart[row]),
            }
            for row in order
        ],
        top1=None if pictures.classes is None else float(np.mean(right == pictures.classes[answered])),
    )
