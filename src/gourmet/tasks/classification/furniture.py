"""What a classifier's folder holds besides its contract, and how the verbs get at it.

data.py       DATA        labelled examples
evaluate.py   EVALUATION  the network asked about them
train.py      TRAINING    see gourmet.training.task
export.py     EXPORT      see gourmet.deploying.target
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gourmet.systems import registry

if TYPE_CHECKING:
    from torch import nn


class LabelledExample(Protocol):
    """A labelled picture, perhaps not yet read."""

    @property
    def name(self) -> str:
        """Unique within its data."""

    @property
    def class_id(self) -> int: ...


@runtime_checkable
class Data(Protocol):
    """Labelled examples, wherever they lie."""

    def listing(self, data: Path, part: str, limit: int | None = None) -> Sequence[LabelledExample]:
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
class _Loading(Protocol):
    @property
    def load(self) -> Load: ...


def data(system: str) -> Data:
    return registry.piece(system, "data", "DATA", Data)  # type: ignore[type-abstract]


def load(system: str) -> Load:
    """What reads the weights of a system, as its evaluation does."""
    return registry.piece(system, "evaluate", "EVALUATION", _Loading).load  # type: ignore[type-abstract]
