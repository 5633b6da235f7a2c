"""Photos with captions by people, and the score of other captions against these.

Data are a folder with
    photos.zip     the photos
    captions.tsv   a line each: the name of a photo, a caption; with a tab between, mostly five to a photo
    splits/        train.txt, dev.txt and test.txt with the names of each part's photos, a line each
"""

from __future__ import annotations

import functools
import math
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet.evaluation.system_parts import BadData, EmptyPart, check_part, sample_evenly
from gourmet.pictures.decode import Pixels, squashed_pixels
from gourmet.served.reading import ZIP_ERRORS, error_summary, read_text

_FOLDER: Final = (
    "data are a folder with photos.zip, captions.tsv (the name of a photo, a tab, a caption) and "
    "splits/train.txt, dev.txt and test.txt (a name a line)"
)
PARTS: Final = {"train": "train", "validation": "dev", "test": "test"}
PHOTOS: Final = "photos.zip"
CAPTIONS: Final = "captions.tsv"


@dataclass(frozen=True)
class CaptionedPhoto:
    name: str
    captions: tuple[str, ...]


def photos(data: Path, part: str, limit: int | None = None) -> tuple[CaptionedPhoto, ...]:
    """Return the photos of one part of `data`; with a `limit`, evenly from all of it."""
    check_part(part, PARTS)
    captions, files = _captions(data), _files(data)
    names = _text(data / "splits" / f"{PARTS[part]}.txt").split()
    captioned = [CaptionedPhoto(name, captions[name]) for name in names if name in captions and name in files]
    if not captioned:
        raise EmptyPart(f"{data} has no photo with a caption for its {part} part")
    return sample_evenly(captioned, limit)


def decoded(data: Path, chosen: Sequence[CaptionedPhoto], side: int) -> Iterator[Pixels]:
    """Decode each photo as served models do, squashed to squares of `side` pixels; raise BadData."""
    with _opened(data) as archive:
        for photo in chosen:
            try:
                square = squashed_pixels(archive.read(photo.name), side)
            except ZIP_ERRORS as exc:
                raise BadData(f"{data / PHOTOS}: {photo.name} cannot be used: {error_summary(exc)}") from exc
            yield square


@functools.lru_cache(maxsize=2)
def _captions(data: Path) -> Mapping[str, tuple[str, ...]]:
    captions: dict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(_text(data / CAPTIONS).split("\n"), 1):
        name, tab, caption = line.rstrip("\r").partition("\t")
        if not line.strip():
            continue
        if not tab or not caption.strip():
            raise BadData(f"{data / CAPTIONS}: line {number} is not a name and a caption with a tab between")
        captions[name].append(caption.strip())
    return {name: tuple(texts) for name, texts in captions.items()}


@functools.lru_cache(maxsize=2)
def _files(data: Path) -> frozenset[str]:
    with _opened(data) as archive:
        return frozenset(archive.namelist())


def _opened(data: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(data / PHOTOS)
    except ZIP_ERRORS as exc:
        raise BadData(f"{data / PHOTOS} cannot be read: {error_summary(exc)}") from exc


def _text(path: Path) -> str:
    try:
        return read_text(path).removeprefix("\ufeff")
    except (OSError, ValueError) as exc:
        raise BadData(f"{path} cannot be read: {error_summary(exc)}; {_FOLDER}") from exc


TOKENIZER: Final = "lower case, words of letters, digits and inner ' and -, 's apart, no punctuation"
_RUNS: Final = 4
_DEVIATION: Final = 6.0
_WORD: Final = re.compile(r"'s\b|[^\W_]+(?:-[^\W_]+|'(?!s\b)[^\W_]+)*")

_Vector = tuple[dict[tuple[str, ...], float], ...]


def scored_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _counted(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(
        tuple(words[first : first + length])
        for length in range(1, _RUNS + 1)
        for first in range(len(words) - length + 1)
    )


class Cider:
    """CIDEr-D (Vedantam, Zitnick, Parikh: CVPR 2015): how close a caption is to those by people.

    Each run of one to four words counts by how few photos it is said of. Texts are lower case without
    punctuation, as COCO's evaluation has them; its tokenizer is a Java program, and reports name this one.
    """

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        counted = [[_counted(scored_words(text)) for text in texts] for texts in references]
        self._photos = math.log(max(1, len(references)))
        self._seen_in = Counter(run for of_photo in counted for run in set().union(*of_photo))
        self._references = [[self._weighed(counts) for counts in of_photo] for of_photo in counted]

    def score(self, photo: int, text: str) -> float:
        vector, norms, length = self._weighed(_counted(scored_words(text)))
        scores = []
        for reference, right, how_long in self._references[photo]:
            likeness = 0.0
            for runs, ours, norm, theirs in zip(vector, reference, norms, right, strict=True):
                both = sum(min(value, ours[run]) * ours[run] for run, value in runs.items() if run in ours)
                likeness += both / (norm * theirs) if norm and theirs else 0.0
            scores.append(likeness * math.exp(-((length - how_long) ** 2) / (2 * _DEVIATION**2)))
        return 10.0 * sum(scores) / len(scores) / _RUNS

    def mean(self, texts: Sequence[str]) -> float:
        """Return the mean score of one text for each photo."""
        return sum(self.score(photo, text) for photo, text in enumerate(texts)) / len(texts)

    def _weighed(self, counts: Counter[tuple[str, ...]]) -> tuple[_Vector, list[float], int]:
        """Weigh the runs of words by length; return them with their norms and the number of word pairs."""
        vector: _Vector = ({}, {}, {}, {})
        for run, count in counts.items():
            vector[len(run) - 1][run] = count * (self._photos - math.log(max(1, self._seen_in[run])))
        norms = [math.sqrt(sum(value * value for value in runs.values())) for runs in vector]
        return vector, norms, sum(count for run, count in counts.items() if len(run) == 2)
