"""The pictures to ask about: a system's labelled data, or a folder of pictures without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gourmet.errors import GourmetError
from gourmet.pictures.header import SUFFIXES
from gourmet.tasks.system_parts import BadData, Data, EmptyPart, Labelled, evenly


@dataclass(frozen=True)
class CheckedPictures:
    """Pictures in their order, not yet read."""

    source: Path
    part: str  # empty where the data have no parts
    names: Sequence[str]
    classes: npt.NDArray[np.int64] | None  # None without labels
    read: Callable[[Sequence[int]], Iterator[bytes]]  # those of some rows
    note: str = ""  # what a reader of the numbers must know about them

    def __len__(self) -> int:
        return len(self.names)


def find(
    source: Data,
    labels: Sequence[str],
    data: Path,
    part: str | None,
    limit: int | None,
    *,
    missing_classes: bool,
) -> CheckedPictures:
    """The pictures of one part of `data`, which `source` reads; the test part unless another is named.

    A folder that holds nothing but pictures is not divided: all of it is asked about.
    """
    loose = _loose(data)
    if loose is not None:
        if not loose:
            suffixes = ", ".join(sorted(SUFFIXES))
            raise BadData(f"{data} holds no pictures: a picture's name ends in {suffixes}")
        try:
            _listing(source, labels, data, "all")
        except GourmetError as exc:
            return _unlabelled(data, loose, limit, str(exc))
    part = part or ("all" if loose else "test")
    listed = _listing(source, labels, data, part)
    pictures = evenly(listed, limit)
    chosen = CheckedPictures(
        source=data,
        part=part,
        names=[picture.name for picture in pictures],
        classes=np.array([picture.class_id for picture in pictures], dtype=np.int64),
        read=lambda rows: source.read([pictures[row] for row in rows]),
    )
    if listed[0].class_id >= len(labels):
        return replace(chosen, classes=None, note="these pictures show none of the labels")
    if (words := _lacking(listed, labels, data, part)) and not missing_classes:
        raise BadData(f"{words}: add some, or say --missing-classes to measure on the others alone")
    words = _lacking(pictures, labels, data, part)
    return replace(chosen, note=f"{words}; balanced numbers are over the others") if words else chosen


def _lacking(pictures: Sequence[Labelled], labels: Sequence[str], data: Path, part: str) -> str:
    absent = [labels[class_id] for class_id in sorted({*range(len(labels))} - {p.class_id for p in pictures})]
    of = f"{len(absent)} of the model's {len(labels)} labels"
    return f"the part {part} of {data} has no pictures of {', '.join(absent)} ({of})" if absent else ""


def _listing(source: Data, labels: Sequence[str], data: Path, part: str) -> Sequence[Labelled]:
    if part != "all":
        return source.listing(data, part)
    parts = dict.fromkeys(("train", *source.parts(data)))
    pictures: list[Labelled] = []
    for name in parts:
        with suppress(EmptyPart):  # few pictures may leave one empty
            pictures += [picture for picture in source.listing(data, name) if picture.class_id < len(labels)]
    if not pictures:
        raise BadData(f"{data} has no pictures in {', '.join(parts)}")
    return pictures


def _loose(data: Path) -> list[Path] | None:
    """The pictures of a folder in which nothing but files lies, and of no other kind of data."""
    if not data.is_dir():
        return None
    visible = [entry for entry in sorted(data.iterdir()) if not entry.name.startswith(".")]
    if any(entry.is_dir() or entry.suffix.lower() == ".zip" for entry in visible):
        return None
    return [entry for entry in visible if entry.suffix.lower() in SUFFIXES]


def _unlabelled(data: Path, paths: list[Path], limit: int | None, why: str) -> CheckedPictures:
    rows = np.linspace(0, len(paths) - 1, min(limit or len(paths), len(paths))).round().astype(int)
    chosen = [paths[row] for row in rows]
    return CheckedPictures(
        source=data,
        part="",
        names=[path.name for path in chosen],
        classes=None,
        read=lambda rows: (chosen[row].read_bytes() for row in rows),
        note=f"these pictures carry no labels, so nothing is said of accuracy ({why})",
    )
