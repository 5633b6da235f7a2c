"""The protocols of a system's data and evaluation; `gourmet.systems.parts` lists all files of a system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from gourmet.contracts import Generation, System
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.progress import ProgressBar
from gourmet.reports.report import Report
from gourmet.training.task import Training

if TYPE_CHECKING:
    from torch import nn


class BadData(GourmetError):
    """Data that cannot be used for training; the message is the reason."""


class EmptyPart(BadData):
    """Data that have no example in some part."""


class Labelled(Protocol):
    """A labelled example, perhaps not yet read."""

    @property
    def name(self) -> str:
        """Unique within its data."""

    @property
    def class_id(self) -> int: ...


@dataclass(frozen=True)
class Reference:
    """A text and its right answer; `source` names their origin."""

    source: str
    text: str
    answer: str


@runtime_checkable
class TextData(Protocol):
    """Texts with their right answers, from files or folders."""

    def references(self, data: Path, part: str, limit: int | None = None) -> Sequence[Reference]:
        """Return the texts of one part of `data`; with a `limit`, evenly from all of it."""


Example = TypeVar("Example", bound=Labelled)
Part = TypeVar("Part")


@runtime_checkable
class Data(Protocol):
    """Labelled examples, from files or folders."""

    def listing(self, data: Path, part: str, limit: int | None = None) -> Sequence[Labelled]:
        """Return the examples of one part of `data`; with a `limit`, evenly from its classes."""

    def parts(self, data: Path) -> tuple[str, ...]:
        """The parts of `data` to measure on."""

    def read(self, examples: Sequence[Any], /) -> Iterator[bytes]:
        """Yield the pictures of `examples` as files, as a client sends them."""


# Reads a file of weights: the network, ready to answer, and what the file says of it; raises GourmetError.
# The second value says which architecture the weights are of, where the file does not; else it is empty.
Load = Callable[[Path, str], tuple["nn.Module", dict[str, Any]]]


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of an evaluation."""

    weights: Path
    data: Path
    limit: int | None = None  # examples of each part
    device: str = "cpu"
    architecture: str = ""  # of weights whose file does not say it


@runtime_checkable
class Evaluation(Protocol):
    """Evaluates a network on the examples of its system."""

    @property
    def load(self) -> Load: ...

    def evaluate(self, options: EvaluateOptions, progress_bar: ProgressBar) -> tuple[Report, dict[str, Any]]:
        """Return the report, and what `gourmet deploy` needs of it."""


class SystemParts(Protocol):
    """What rooms may ask of one system: `gourmet.systems.parts.SystemParts`, handed down by a verb."""

    @property
    def contract(self) -> System: ...

    @property
    def classifier(self) -> PictureClassifier: ...

    @property
    def generator(self) -> Generation: ...

    @property
    def data(self) -> Data: ...

    @property
    def text_data(self) -> TextData: ...

    @property
    def training(self) -> Training: ...

    @property
    def evaluation(self) -> Evaluation: ...


def check_part(part: str, known: Collection[str]) -> None:
    """Raise unless `part` is a name that a part of a data set can have."""
    if part not in known:
        raise UsageError(f"{part!r} is not a part of a data set; there are {', '.join(known)}")


def check_classes(source: Path, classes: Iterable[int], labels: Sequence[str]) -> None:
    """Raise unless every label has an example."""
    present = set(classes)
    lacking = [label for class_id, label in enumerate(labels) if class_id not in present]
    if lacking:
        raise BadData(
            f"{source} has no photos of {', '.join(lacking)}: training needs all {len(labels)} classes"
        )


def sample_evenly(examples: Sequence[Part], limit: int | None) -> tuple[Part, ...]:
    """Return `limit` examples, sampled evenly."""
    count = min(limit or len(examples), len(examples))
    return tuple(examples[number * len(examples) // count] for number in range(count))


def sample_per_class(examples: Sequence[Example], limit: int | None) -> tuple[Example, ...]:
    """Return `limit` examples, equally many of each class, spread evenly over the class."""
    if limit is None or not examples:
        return tuple(examples)
    by_class = defaultdict[int, list[int]](list)
    for number, example in enumerate(examples):
        by_class[example.class_id].append(number)
    share = -(-limit // len(by_class))
    chosen = [number for rows in by_class.values() for number in rows[:: max(1, len(rows) // share)][:share]]
    return tuple(examples[number] for number in sorted(chosen)[:limit])
