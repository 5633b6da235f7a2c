"""Labelled food photos: Food-11's folders, or the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gourmet.systems.food11 import contract
from gourmet.tasks.classification.labelled_pictures import LabelledPictures, Photo

DATA: Final = LabelledPictures(contract.SYSTEM.labels)


def dishes(photos: Sequence[Photo]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names of the dishes of `photos`, sorted by class, and the class of each."""
    found = sorted({(photo.class_id, photo.variety) for photo in photos})
    return tuple(f"{c:02d}/{dish}" for c, dish in found), tuple(c for c, _ in found)
