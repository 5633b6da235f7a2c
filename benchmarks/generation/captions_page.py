"""What is wanted of the captioner, and its part of docs/captioner.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from generation import page
from generation.captions import BESIDE_CAPTIONS, BESIDE_TRANSLATIONS, FASTAPI, MANY
from generation.page import SentenceComparison
from generation.without_triton import ENCODER_MS, PYTHON, READING_MS
from gourmet.measure.results import Requirement
from harness.report import DocsPart

PART: Final = DocsPart("gourmet bench generation captions", "captioner.md", "Captions", "to here: captions")
PICTURE: Final = "captions.svg"


def goals(comparison: SentenceComparison) -> list[Requirement]:
    """As far as everybody who is needed for one took part in every turn."""
    table = comparison.table
    first = "first word, less reading and seeing the photo, in steps of a decoder"
    beside = "p99 of a translation: beside eight captions ÷ beside eight translations"
    return [
        *page.ahead_of(table, f"{FASTAPI}, best threads", FASTAPI, MANY, 2.0),
        *page.ahead_of(table, f"{PYTHON}, best threads", PYTHON, MANY, 0.85),
        *page.first_piece(table, first, (READING_MS, ENCODER_MS), 6.0),
        *page.tail(table, beside, (BESIDE_CAPTIONS, BESIDE_TRANSLATIONS), 1.5, level=1),
    ]


def write(comparison: SentenceComparison, folder: Path) -> tuple[Path, ...]:
    return page.write(comparison, folder, goals(comparison), PART, PICTURE)
