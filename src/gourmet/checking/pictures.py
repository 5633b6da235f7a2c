"""The pictures to ask about: a system's labelled data, or a folder of pictures that nobody has labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.errors import GourmetError
from gourmet.systems import registry
from gourmet.systems.pictures import FORMATS

ALL: Final = "all"


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


def find(system: str, data: Path, part: str, limit: int | None, *, missing_classes: bool) -> Pictures:
    """The pictures of one part of `data`, or of all of it.

    With a `limit`, so many of them from all over. A class without a picture is an error unless
    `missing_classes` says that it is meant.
    """
    if not data.exists():
        raise BadPictures(f"{data} does not exist: --data names pictures, in a folder or a zip")
    loose = _loose(data)
    if loose is not None and not loose:
        raise BadPictures(f"{data} holds no pictures: a picture's name ends in {', '.join(_suffixes())}")
    try:
        photos = _listing(system, data, part, limit)
    except GourmetError as exc:
        if loose and not _labelled(system, data):
            return _unlabelled(data, loose, limit, str(exc))
        raise
    labels = registry.room(system, "contract").LABELS
    classes = np.array([photo.class_id for photo in photos], dtype=np.int64)
    lacking = _lacking(labels, photos)
    if lacking and not missing_classes:
        lacking_always = lacking if limit is None else _lacking(labels, _listing(system, data, part, None))
        if lacking_always:
            raise BadPictures(
                f"{_words(data, part, lacking_always, labels)}: add some, or say --missing-classes to "
                "measure on the others alone"
            )
    return Pictures(
        source=data,
        part=part,
        names=[photo.name for photo in photos],
        classes=classes,
        read=lambda rows: registry.room(system, "data").read(photos[rows]),
        note=f"{_words(data, part, lacking, labels)}; balanced numbers are over the others"
        if lacking
        else "",
    )


def _listing(system: str, data: Path, part: str, limit: int | None) -> Sequence[Any]:
    room: ModuleType = registry.room(system, "data")
    if part != ALL:
        found: Sequence[Any] = room.listing(data, part, limit)
        return found
    parts = dict.fromkeys(("train", *room.parts(data)))
    photos = [photo for each in parts for photo in room.listing(data, each)]
    return photos if limit is None else _spread(photos, limit)


def _lacking(labels: Sequence[str], photos: Sequence[Any]) -> list[str]:
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
            _listing(system, data, part, None)
        except GourmetError:
            continue
        return True
    return False


def _unlabelled(data: Path, paths: list[Path], limit: int | None, why: str) -> Pictures:
    chosen = paths if limit is None else _spread(paths, limit)
    return Pictures(
        source=data,
        part="",
        names=[path.name for path in chosen],
        classes=None,
        read=lambda rows: (path.read_bytes() for path in chosen[rows]),
        note=f"these pictures carry no labels, so nothing is said of accuracy ({why})",
    )


def _spread(entries: list[Any], limit: int) -> list[Any]:
    """`limit` of `entries`, evenly from all over."""
    rows = np.unique(np.linspace(0, len(entries) - 1, min(limit, len(entries))).round().astype(int))
    return [entries[row] for row in rows]


def _suffixes() -> list[str]:
    return sorted(suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS)
