"""Folder names of labelled pictures: find the class of a folder, and the folder of a class."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

# Pictures that show none of the classes.
OTHER: Final = "other"
# part -> the names that its file or folder may have.
PARTS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "evaluation", "testing"),
    "sharp": ("sharp",),
    OTHER: ("other",),
}
_PART_NAMES: Final = frozenset(name for names in PARTS.values() for name in names)
_MAX_BYTES: Final = 200  # less than the 255 bytes that file systems allow


def class_of(folder: str, labels: Sequence[str]) -> int | None:
    """Return the class whose label or number is `folder`. If a label is a number, the label counts."""
    if folder in labels:
        return labels.index(folder)
    digest = folder.rpartition("=")[2]
    if digest in (digests := [_digest(label) for label in labels]):
        return digests.index(digest)
    if (number := number_of(folder)) is not None:
        return number if number < len(labels) else None
    plain, plain_labels = _plain(folder), [_plain(label) for label in labels]
    return plain_labels.index(plain) if plain in plain_labels else None


def folder_of(label: str, labels: Sequence[str]) -> str:
    """Return a folder name for one of `labels`, for which `class_of` returns this label."""
    readable = re.sub(r"\W+", "-", label)
    is_unique = readable.lower() not in _PART_NAMES and class_of(readable, labels) == labels.index(label)
    if is_unique and len(readable.encode()) <= _MAX_BYTES:
        return readable
    return f"{readable[: _MAX_BYTES // 5]}={_digest(label)}"


def number_of(name: str) -> int | None:
    """Return the number in a name like 07 or class_07."""
    match = re.fullmatch(r"(?:class)?([0-9]{1,9})", _plain(name))
    return int(match[1]) if match else None


def _plain(words: str) -> str:
    return re.sub(r"\W|_", "", words).lower()


def _digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()[:16]
