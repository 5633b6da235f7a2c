"""Labelled food photos: Food-11's folders, or the like."""

from __future__ import annotations

from typing import Final

from gourmet.systems.food11 import contract
from gourmet.tasks.classification.labelled_pictures import LabelledPictures

DATA: Final = LabelledPictures(contract.SYSTEM.labels)
