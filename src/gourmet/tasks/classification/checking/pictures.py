"""The pictures to ask about: a system's labelled data, or a folder of pictures that nobody has labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.errors import GourmetError
from gourmet.pictures.decode import FORMATS
from gourmet.systems import registry
from gourmet.tasks.classification import furniture
from gourmet.tasks.classification.furniture import LabelledExample
from gourmet.tasks.datasets import EmptyPart, evenly

ALL: Final = "all"
TEST: Final = "test"


class BadPictures(GourmetError):
    """Pictures that say nothing about the model: none at all, or labelled for another one."""


@dataclass(frozen=True)
class Pictures:
    """Pictures in their order, not yet read."""

    source: Path
    part: str  # empty where the data have no parts
    names: Sequence[str]
    classes: npt.NDArray[np.int64] | None  # none where nobody has labelled them
    read: Callable[[slice], Iterator[bytes]]
    note: str = ""  # what a reader of the numbers must know about them

    def __len__(self) -> int:
        return len(self.names)


def find(system: str, data: Path, part: str | None, limit: int | None, *, missing_classes: bool) -> Pictures:
    """The pictures of one part of `data`, or of all of it.

    Where no part is named it is the test part, and all of a folder that holds nothing but pictures: it
    is not divided, and all of it is asked about.

    With a `limit`, so many of them from all over. A class without a picture is an error unless
    `missing_classes` says that it is meant.
    """
    if not data.exists():
        raise BadPictures(f"{data} does not exist: --data names pictures, in a folder or a zip")
    loose = _loose(data)
    if loose is not None and not loose:
        raise BadPictures(f"{data} holds no pictures: a picture's name ends in {', '.join(_suffixes())}")
    part = part or (ALL if loose else TEST)
    try:
        there = _listing(system, data, part)
    except GourmetError as exc:
        if loose and not _labelled(system, data):
            return _unlabelled(data, loose, limit, str(exc))
        raise
    labels = registry.classification(system).labels
    lacking = _lacking(labels, there)
    if lacking and not missing_classes:
        raise BadPictures(
            f"{_words(data, part, lacking, labels)}: add some, or say --missing-classes to "
            "measure on the others alone"
        )
    photos = evenly(there, limit)
    lacking = _lacking(labels, photos)
    return Pictures(
        source=data,
        part=part,
        names=[photo.name for photo in photos],
        classes=np.array([photo.class_id for photo in photos], dtype=np.int64),
        read=lambda rows: furniture.data(system).read(photos[rows]),
        note=f"{_words(data, part, lacking, labels)}; balanced numbers are over the others"
        if lacking
        else "",
    )


def _listing(system: str, data: Path, part: str) -> Sequence[LabelledExample]:
    known = furniture.data(system)
    if part != ALL:
        return known.listing(data, part)
    parts = dict.fromkeys(("train", *known.parts(data)))
    photos = [photo for each in parts for photo in _there(known, data, each)]
    if not photos:
        raise BadPictures(f"{data} has no pictures in {', '.join(parts)}")
    return photos


def _there(known: furniture.Data, data: Path, part: str) -> Sequence[LabelledExample]:
    """The pictures of a part; few pictures may leave one empty."""
    try:
        return known.listing(data, part)
    except EmptyPart:
        return ()


def _lacking(labels: Sequence[str], photos: Sequence[LabelledExample]) -> list[str]:
    there = {photo.class_id for photo in photos}
    return [label for class_id, label in enumerate(labels) if class_id not in there]


def _words(data: Path, part: str, lacking: Sequence[str], labels: Sequence[str]) -> str:
    return (
        f"the part {part} of {data} has no pictures of {', '.join(lacking)} "
        f"({len(lacking)} of the model's {len(labels)} labels)"
    )


def _loose(data: Path) -> list[Path] | None:
    """The pictures of a folder in which nothing but files lies, and of no other kind of data."""
    if not data.is_dir():
        return None
    visible = [entry for entry in sorted(data.iterdir()) if not entry.name.startswith(".")]
    if any(entry.is_dir() or entry.suffix.lower() == ".zip" for entry in visible):
        return None
    return [entry for entry in visible if entry.suffix.lower() in _suffixes()]


def _labelled(system: str, data: Path) -> bool:
    """Whether the system finds labels in at least one part of `data`."""
    for part in ("train", "validation", "test"):
        try:
            _listing(system, data, part)
        except GourmetError:
            continue
        return True
    return False


def _unlabelled(data: Path, paths: list[Path], limit: int | None, why: str) -> Pictures:
    rows = np.linspace(0, len(paths) - 1, min(limit or len(paths), len(paths))).round().astype(int)
    chosen = [paths[row] for row in rows]
    return Pictures(
        source=data,
        part="",
        names=[path.name for path in chosen],
        classes=None,
        read=lambda rows: (path.read_bytes() for path in chosen[rows]),
        note=f"these pictures carry no labels, so nothing is said of accuracy ({why})",
    )


def _suffixes() -> list[str]:
    return sorted(suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS)
