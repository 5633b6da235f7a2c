"""The pieces of a system's folder that the verbs use, whatever its task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gourmet.deploying.target import Export
from gourmet.systems import registry
from gourmet.training.task import Tick, Training

Stage = Callable[[str], AbstractContextManager[Tick]]


class Evaluated(Protocol):
    """What was measured of some weights."""

    def as_dict(self) -> dict[str, Any]:
        """By part, for another program."""

    def lines(self) -> list[str]:
        """For a terminal."""

    def write(self, weights: Path, title: str) -> Path:
        """Leave what deploying needs beside the weights, and a report, whose path is returned."""


@runtime_checkable
class Evaluation(Protocol):
    """A system's EVALUATION, in its evaluate.py."""

    def evaluate(
        self,
        weights: Path,
        data: Path,
        stage: Stage,
        *,
        limit: int | None,
        device: str,
        architecture: str = "",
    ) -> Evaluated: ...


def training(system: str) -> Training:
    return registry.piece(system, "train", "TRAINING", Training)  # type: ignore[type-abstract]


def evaluation(system: str) -> Evaluation:
    return registry.piece(system, "evaluate", "EVALUATION", Evaluation)  # type: ignore[type-abstract]


def export(system: str) -> Export:
    return registry.piece(system, "export", "EXPORT", Export)  # type: ignore[type-abstract]
