"""Names of folders of labelled pictures: the class that one is of, and the one for a class."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

# Pictures that show none of the classes.
OTHER: Final = "other"
# part -> the names that a file or folder of it goes by.
PARTS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "evaluation", "testing"),
    "sharp": ("sharp",),
    OTHER: ("other",),
}
_PART_NAMES: Final = frozenset(name for names in PARTS.values() for name in names)
_MAX_BYTES: Final = 200  # of a name that a file system takes, with room for more


def class_of(folder: str, labels: Sequence[str]) -> int | None:
    """The class whose label or number `folder` is; a label that is a number goes before the number."""
    if folder in labels:
        return labels.index(folder)
    digest = folder.rpartition("=")[2]
    if digest in (digests := [_digest(label) for label in labels]):
        return digests.index(digest)
    if (number := number_of(folder)) is not None:
        return number if number < len(labels) else None
    called, plain = _plain(folder), [_plain(label) for label in labels]
    return plain.index(called) if called in plain else None


def folder_of(label: str, labels: Sequence[str]) -> str:
    """The folder of one of `labels`, of which `class_of` says that label and no other."""
    readable = re.sub(r"\W+", "-", label)
    is_told_apart = readable.lower() not in _PART_NAMES and class_of(readable, labels) == labels.index(label)
    if is_told_apart and len(readable.encode()) <= _MAX_BYTES:
        return readable
    return f"{readable[: _MAX_BYTES // 5]}={_digest(label)}"


def number_of(name: str) -> int | None:
    """The class in 07 or class_07."""
    match = re.fullmatch(r"(?:class)?([0-9]{1,9})", _plain(name))
    return int(match[1]) if match else None


def _plain(words: str) -> str:
    return re.sub(r"\W|_", "", words).lower()


def _digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()[:16]
