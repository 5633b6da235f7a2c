"""What a picture shows, as a model of pictures told."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app.server_timing import ServerTiming
from gourmet.pictures.classifier import PictureClassifier

TOP: Final = 5


@dataclass(frozen=True)
class Prediction:
    """What a picture shows; `sure` is false below the threshold that the model was trained to need.

    `relevance` is how likely it shows what the system is about at all, where the model tells that.
    """

    system: PictureClassifier
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    model: str
    version: str
    threshold: float = 0.0
    relevance: float | None = None
    subject_threshold: float = 0.0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    inside: ServerTiming | None = None

    @functools.cached_property
    def _best(self) -> list[int]:
        return heapq.nlargest(TOP, range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def top(self) -> list[tuple[str, float]]:
        """The likeliest labels with their probabilities, best first."""
        return [(self.labels[at], self.probabilities[at]) for at in self._best]

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
    def applying(self) -> list[tuple[str, float]] | None:
        """Where a picture may have several labels: those that are sure, best first."""
        if not self.system.multi_label:
            return None
        pairs = zip(self.labels, self.probabilities, strict=True)
        return sorted((pair for pair in pairs if pair[1] >= self.threshold), key=lambda pair: -pair[1])

    @property
    def shown(self) -> str:
        """The label, or all that apply."""
        return ", ".join(label for label, _ in self.applying or ()) or self.label

    @property
    def relevant(self) -> bool:
        return self.relevance is None or self.relevance >= self.subject_threshold

    @property
    def sure(self) -> bool:
        return self.relevant and self.probability >= self.threshold
