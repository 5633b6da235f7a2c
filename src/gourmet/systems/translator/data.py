"""Read sentences and their translations: Russian and English, or another pair of languages.

Data are one of
    pairs.tsv      a line each: split (train, dev, test), source, English, Russian; with tabs between
    software.tsv   beside it: package, English, Russian; more to learn from, in another register
    synthetic.tsv  beside it, in the same columns: pairs of which a network wrote one side
                   (scripts/synthetic_pairs.py)
    a folder       that holds these
    any file       with two columns, of which one is Russian; one line in fifty is held out for either part

Of another pair, the first of two columns is what is translated, and the last of four.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet.evaluation.system_parts import BadData, EmptyPart, Reference, TextData, check_part, sample_evenly
from gourmet.served.reading import read_text

PARTS: Final = ("train", "validation", "test")
PAIRS: Final = "pairs.tsv"
SOFTWARE: Final = "software.tsv"
SYNTHETIC: Final = "synthetic.tsv"
_PART_OF_SPLIT: Final = {"train": "train", "dev": "validation", "test": "test"}
_RUSSIAN: Final = re.compile(r"[а-яёА-ЯЁ]")
_HELD_OUT: Final = 50
_MAX_LINES: Final = 10_000_000
# Characters of a sentence or a translation: comparing them costs time and memory for each.
_LONGEST: Final = 10_000


@dataclass(frozen=True)
class SentenceData:
    """Fulfils gourmet.evaluation.system_parts.TextData."""

    is_russian: bool = True

    def references(self, data: Path, part: str, limit: int | None = None) -> tuple[Reference, ...]:
        """Return one part of `data`; with a `limit`, sampled evenly."""
        check_part(part, PARTS)
        if not (pairs := _read_pairs(data, self.is_russian).get(part, ())):
            raise EmptyPart(f"{data} has no pair of sentences for its {part} part")
        return sample_evenly(pairs, limit)


DATA: Final[TextData] = SentenceData()


def pairs_of_file(data: Path, name: str) -> tuple[Reference, ...]:
    """Return the pairs of SOFTWARE or SYNTHETIC beside `data`, if there are any."""
    path = (data if data.is_dir() else data.parent) / name
    if not path.is_file():
        return ()
    return tuple(Reference(source, russian, english) for source, english, russian in _rows(path, 3))


@functools.lru_cache(maxsize=2)
def _read_pairs(data: Path, is_russian: bool) -> Mapping[str, Sequence[Reference]]:
    path = data / PAIRS if data.is_dir() else data
    rows = _rows(path, 4, 2)
    parts: dict[str, list[Reference]] = {part: [] for part in PARTS}
    if len(rows[0]) == 4:
        for split, source, english, russian in rows:
            if split not in _PART_OF_SPLIT:
                raise BadData(f"{path}: the first column has {split!r}; it may be train, dev and test")
            parts[_PART_OF_SPLIT[split]].append(Reference(source, russian, english))
        return parts
    first, second = (
        sum(bool(_RUSSIAN.search(row[column])) for row in rows) if is_russian else 1 - column
        for column in (0, 1)
    )
    if first == second:
        raise BadData(f"{path}: as many lines have Russian letters in either column, so which is Russian?")
    for row in rows:
        russian, english = row if first > second else reversed(row)
        # By the text and not by the line number: the parts stay the same when the file grows.
        lot = zlib.crc32(english.casefold().encode()) % _HELD_OUT
        part = {0: "validation", 1: "test"}.get(lot, "train")
        parts[part].append(Reference(path.stem, russian, english))
    return parts


def _rows(path: Path, *columns: int) -> list[list[str]]:
    """Yield lines with as many texts as the first line; their number must be one of `columns`."""
    try:
        text = read_text(path).removeprefix("\ufeff")
    except (OSError, ValueError) as exc:
        raise BadData(
            f"{path} cannot be read: {exc}. Wanted are {PAIRS}, a folder that holds it, or a file of two "
            "columns with a tab between"
        ) from exc
    if text.count("\n") > _MAX_LINES:
        raise BadData(f"{path} has more than {_MAX_LINES:,} lines: give fewer")
    # Not splitlines: it also splits at characters that sentences may contain.
    rows = [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip()]
    if not rows:
        raise BadData(f"{path} is empty")
    width = len(rows[0]) if len(rows[0]) in columns else columns[-1]
    for number, row in enumerate(rows, 1):
        if len(row) != width or not all(cell.strip() for cell in row):
            texts = sum(bool(cell.strip()) for cell in row)
            raise BadData(f"{path}: line {number} has {texts} texts; {width} are needed, tabs between them")
        if (longest := max(map(len, row))) > _LONGEST:
            raise BadData(
                f"{path}: line {number} has a text of {longest:,} characters; at most {_LONGEST:,} are read"
            )
    return rows
