"""What a system's folder holds besides its contract, and how the verbs get at it.

data.py       DATA        labelled examples
train.py      TRAINING    see gourmet.training.task
evaluate.py   EVALUATION  the network asked about them
export.py     EXPORT      see gourmet.deploying.target
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gourmet.deploying.target import Export
from gourmet.systems import registry
from gourmet.tasks.datasets import Labelled
from gourmet.training.task import Tick, Training

if TYPE_CHECKING:
    from torch import nn

    from gourmet.tasks.classification.evaluation import Evaluated

Stage = Callable[[str], AbstractContextManager[Tick]]


@runtime_checkable
class Data(Protocol):
    """Labelled examples, wherever they lie."""

    def listing(self, data: Path, part: str, limit: int | None = None) -> Sequence[Labelled]:
        """Those of one part of `data`; with a `limit`, evenly from its classes."""

    def parts(self, data: Path) -> tuple[str, ...]:
        """The parts of `data` to measure on."""

    def read(self, examples: Sequence[Any], /) -> Iterator[bytes]:
        """Each of `examples`, out of a listing, as a picture that a client could send."""


class Load(Protocol):
    """Reads a file of weights."""

    def __call__(self, path: Path, architecture: str = "", /) -> tuple[nn.Module, dict[str, Any]]:
        """The network, ready to answer, and what the file says of it; raise BadWeights.

        `architecture` says what the weights are of, where the file does not.
        """


@runtime_checkable
class Evaluation(Protocol):
    """A network asked about the examples of its system."""

    @property
    def load(self) -> Load: ...

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


def data(system: str) -> Data:
    return registry.piece(system, "data", "DATA", Data)  # type: ignore[type-abstract]


def training(system: str) -> Training:
    return registry.piece(system, "train", "TRAINING", Training)  # type: ignore[type-abstract]


def evaluation(system: str) -> Evaluation:
    return registry.piece(system, "evaluate", "EVALUATION", Evaluation)  # type: ignore[type-abstract]


def export(system: str) -> Export:
    return registry.piece(system, "export", "EXPORT", Export)  # type: ignore[type-abstract]
