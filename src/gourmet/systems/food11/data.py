"""Labelled food photos: Food-11's folders, or the like."""

from __future__ import annotations

from typing import Final

from gourmet.evaluation.labelled_pictures import LabelledPictures
from gourmet.systems.food11 import contract

DATA: Final = LabelledPictures(contract.SYSTEM.labels)
