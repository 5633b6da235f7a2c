"""Photos and what people said of them.

Data are a folder with
    photos.zip     the photos
    captions.tsv   a line each: the name of a photo, a caption; with a tab between, mostly five to a photo
    splits/        train.txt, dev.txt and test.txt with the names of each part's photos, a line each
"""

from __future__ import annotations

import contextlib
import functools
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet.pictures.decode import Pixels
from gourmet.runtime.reading import ZIP_ERRORS, in_short, read_text
from gourmet.tasks.system_parts import BadData, EmptyPart, check_part

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
    captions, there = _captions(data), _there(data)
    names = _text(data / "splits" / f"{PARTS[part]}.txt").split()
    found = [CaptionedPhoto(name, captions[name]) for name in names if name in captions and name in there]
    if not found:
        raise EmptyPart(f"{data} has no photo with a caption for its {part} part")
    count = min(limit or len(found), len(found))
    return tuple(found[number * len(found) // count] for number in range(count))


def read(data: Path, chosen: Sequence[CaptionedPhoto]) -> Iterator[bytes]:
    """Each as the file that it is."""
    with contextlib.ExitStack() as opened:
        try:
            archive = opened.enter_context(zipfile.ZipFile(data / PHOTOS))
        except ZIP_ERRORS as exc:
            raise _not_a_zip(data, exc) from exc
        for photo in chosen:
            try:
                content = archive.read(photo.name)
            except ZIP_ERRORS as exc:
                raise BadData(f"{data / PHOTOS} is damaged at {photo.name}: {in_short(exc)}") from exc
            yield content


def decoded(
    data: Path, chosen: Sequence[CaptionedPhoto], side: int, decode: Callable[[bytes, int], Pixels]
) -> Iterator[Pixels]:
    """Each as squares of `side` pixels; raises BadData for what is not a photo that may be decoded."""
    for photo, file in zip(chosen, read(data, chosen), strict=True):
        try:
            square = decode(file, side)
        except (OSError, ValueError) as exc:
            raise BadData(f"{data / PHOTOS}: {photo.name} cannot be used: {in_short(exc)}") from exc
        yield square


@functools.lru_cache(maxsize=2)
def _captions(data: Path) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(_text(data / CAPTIONS).split("\n"), 1):
        name, tab, caption = line.rstrip("\r").partition("\t")
        if not line.strip():
            continue
        if not tab or not caption.strip():
            raise BadData(f"{data / CAPTIONS}: line {number} is not a name and a caption with a tab between")
        found[name].append(caption.strip())
    return {name: tuple(captions) for name, captions in found.items()}


@functools.lru_cache(maxsize=2)
def _there(data: Path) -> frozenset[str]:
    try:
        with zipfile.ZipFile(data / PHOTOS) as archive:
            return frozenset(archive.namelist())
    except ZIP_ERRORS as exc:
        raise _not_a_zip(data, exc) from exc


def _not_a_zip(data: Path, reason: Exception) -> BadData:
    return BadData(f"{data / PHOTOS} cannot be read: {in_short(reason)}")


def _text(path: Path) -> str:
    try:
        return read_text(path).removeprefix("\ufeff")
    except (OSError, ValueError) as exc:
        raise BadData(f"{path} cannot be read: {exc}. Wanted is {' '.join(str(__doc__).split())}") from exc
