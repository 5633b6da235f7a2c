"""What labelled data of every system have in common: parts, and errors that name what is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from gourmet.errors import GourmetError, UsageError


class BadData(GourmetError):
    """Data that cannot be learned from, and why."""


class EmptyPart(BadData):
    """Data without an example in one of their parts."""


class Labelled(Protocol):
    """A labelled example, perhaps not yet read."""

    @property
    def name(self) -> str:
        """Unique within its data."""

    @property
    def class_id(self) -> int: ...


Example = TypeVar("Example", bound=Labelled)


def check_part(part: str, known: Collection[str]) -> None:
    """Raise unless `part` is a name that a part of a data set can have."""
    if part not in known:
        raise UsageError(f"{part!r} is not a part of a data set; there are {', '.join(known)}")


def check_classes(source: Path, found: Iterable[int], labels: Sequence[str]) -> None:
    """Raise unless every label has an example."""
    there = set(found)
    lacking = [label for class_id, label in enumerate(labels) if class_id not in there]
    if lacking:
        raise BadData(
            f"{source} has no photos of {', '.join(lacking)}: training needs all {len(labels)} classes"
        )


def evenly(examples: Sequence[Example], limit: int | None) -> tuple[Example, ...]:
    """`limit` examples, as many of each class as there are of the others, spread over each class."""
    if limit is None:
        return tuple(examples)
    by_class = defaultdict[int, list[int]](list)
    for place, example in enumerate(examples):
        by_class[example.class_id].append(place)
    share = -(-limit // len(by_class))
    chosen = [place for mine in by_class.values() for place in mine[:: max(1, len(mine) // share)][:share]]
    return tuple(examples[place] for place in sorted(chosen)[:limit])
