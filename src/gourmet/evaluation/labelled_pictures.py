"""List labelled pictures in folders and archives, and read them as pixels.

A data folder is one of
    train.zip, test.zip, …                 members <class>/<id>.jpg
    training/ validation/ evaluation/      0_123.jpg, Bread/…, or class_00/…
    a folder of class folders              without parts: a fifth of it is held out for testing
    other.zip or other/                    beside parts or class folders: pictures of none of the classes
    one zip of all of these folders        class folders, and other/ among them
where a class folder is a label (Bread, Noodles-Pasta) or a number (00 to 10, class_00; what is both is the
label), and may have a folder for each variety of the class (Bread/rye/…). Without a validation part, a
twentieth of the training pictures is held out as one; a picture's name alone decides which, so that the parts
never mix, whatever else is added.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from gourmet.evaluation.system_parts import BadData, EmptyPart, check_part, sample_per_class
from gourmet.pictures.decode import PictureError, identify, square_pixels
from gourmet.pictures.header import SUFFIXES
from gourmet.pictures.label_folders import OTHER, PARTS, class_of, number_of
from gourmet.served.reading import ZIP_ERRORS, error_summary

# Pictures of none of the classes, a fifth of which are held out: those to learn from.
ALL: Final = "all"
OTHER_TRAIN: Final = "other, to learn from"
Used = TypeVar("Used")
_HELD_OUT: Final = {"validation": 20, "test": 5}  # one photo in so many
_NUMBERED: Final = re.compile(r"(\D.*?)[_-]?\d+", re.DOTALL)


@dataclass(frozen=True)
class LabelledPhoto:
    """A labelled photo, not yet read. `name` is unique within its data."""

    source: Path  # a zip or a folder
    name: str
    class_id: int

    @property
    def origin(self) -> str:
        """Return the source that the photo's name tells, or an empty text."""
        return origin_of(self.name)


def origin_of(name: str) -> str:
    """Return a picture's source by its file's name: `recipes` for recipes_0012.webp; "" if it has none."""
    match = _NUMBERED.fullmatch(Path(name).stem)
    return match[1] if match else ""


@dataclass(frozen=True)
class Pixels:
    """Examples as one array; of photos, uint8 [N, side, side, 3]."""

    photos: tuple[LabelledPhoto, ...]
    images: npt.NDArray[Any]
    classes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelledPictures:
    """The pictures of a classifier with these labels, in any data folder; fulfils `system_parts.Data`."""

    labels: tuple[str, ...]

    def listing(self, data: Path, part: str, limit: int | None = None) -> tuple[LabelledPhoto, ...]:
        """Return the pictures of one part of `data`; with a `limit`, evenly from its classes."""
        if part == ALL:
            return tuple(self.listing(data, "train") if _is_divided(data) else self._photos(data))
        if part == OTHER_TRAIN:
            return tuple(photo for photo in self.others(data) if not _is_held_out(photo, "test"))
        check_part(part, PARTS)
        sources = _sources(data)
        if part == OTHER:
            photos = [photo for photo in self.others(data) if _is_held_out(photo, "test")]
        elif part in sources:
            photos = self._photos(sources[part])
            if part == "train" and "validation" not in sources:
                photos = [photo for photo in photos if not _is_held_out(photo, "validation")]
        elif part == "validation" and "train" in sources:
            photos = [photo for photo in self._photos(sources["train"]) if _is_held_out(photo, "validation")]
        elif not _is_divided(data):
            photos = [photo for photo in self._photos(data) if _part_of(photo) == part]
        else:
            raise BadData(f"{data} has no {part} part: it has {', '.join(sorted(sources))}")
        if not photos:
            raise EmptyPart(f"{data} has no photos in its {part} part")
        return sample_per_class(photos, limit)

    def parts(self, data: Path) -> tuple[str, ...]:
        parts = ["validation", "test", *_sources(data)]
        if self.others(data):
            parts.append(OTHER)
        return tuple(dict.fromkeys(part for part in parts if part != "train"))

    @staticmethod
    def read(photos: Sequence[LabelledPhoto]) -> Iterator[bytes]:
        """Yield the bytes of each photo, in order; open each zip once."""
        with contextlib.ExitStack() as opened:
            archives: dict[Path, zipfile.ZipFile] = {}
            for photo in photos:
                try:
                    if photo.source not in archives and not photo.source.is_dir():
                        archives[photo.source] = opened.enter_context(zipfile.ZipFile(photo.source))
                    content = _content(photo, archives.get(photo.source))
                except ZIP_ERRORS as exc:
                    raise BadData(f"{photo.source} is damaged at {photo.name}: {error_summary(exc)}") from exc
                yield content

    def others(self, data: Path) -> list[LabelledPhoto]:
        """Return all pictures of none of the classes, to learn from and held out."""
        source = _sources(data).get(OTHER)
        names = [] if source or data.is_dir() else _others_in(_members(data))
        names = _members(source) if source else names
        return [LabelledPhoto(source or data, name, len(self.labels)) for name in names]

    def _photos(self, source: Path) -> list[LabelledPhoto]:
        names = _members(source)
        others = set(_others_in(names))
        return [
            LabelledPhoto(source, name, self._class_of(source, name)) for name in names if name not in others
        ]

    def _class_of(self, source: Path, name: str) -> int:
        """Return the class by the path: <class>/…/x.jpg, or <class>_x.jpg."""
        steps = name.split("/")
        in_folder = len(steps) > 1
        class_id = class_of(steps[0], self.labels) if in_folder else number_of(steps[0].partition("_")[0])
        if class_id is None or class_id >= len(self.labels):
            last = len(self.labels) - 1
            raise BadData(
                f"{source}: {name} is in none of the {last + 1} classes: a folder is called "
                f"00 to {last:02d}, class_00, or {', '.join(self.labels)}"
            )
        return class_id


def class_folders(data: Path) -> tuple[str, ...]:
    """Return the sorted names of the folders with pictures to learn from, without `other`."""
    names = _members(_sources(data).get("train", data))
    return tuple(sorted({name.split("/")[0] for name in names if "/" in name} - {*PARTS[OTHER]}))


def _content(photo: LabelledPhoto, archive: zipfile.ZipFile | None) -> bytes:
    if archive is None:
        return (photo.source / photo.name).read_bytes()
    return archive.read(photo.name)


def decode(
    parts: Sequence[Sequence[LabelledPhoto]], side: int, tick: Callable[[float], None] = lambda share: None
) -> list[Pixels]:
    """Decode all photos of each part as squares of `side` pixels; call `tick` with the share done."""
    try:
        decoded = [
            Pixels(
                tuple(photos),
                np.empty((len(photos), side, side, 3), dtype=np.uint8),
                np.array([photo.class_id for photo in photos], dtype=np.int64),
            )
            for photos in parts
        ]
    except MemoryError as exc:
        raise BadData(
            f"{sum(map(len, parts)):,} pictures of {side} pixels do not fit into memory: {exc}"
        ) from exc
    images = [image for pixels in decoded for image in pixels.images]
    everything = [photo for photos in parts for photo in photos]
    for number, image in enumerate(_use_each_photo(everything, lambda data: square_pixels(data, side))):
        images[number][:] = image
        tick((number + 1) / len(everything))
    return decoded


def natural_side(photos: Sequence[LabelledPhoto], max_side: int, samples: int = 64) -> int:
    """Return the side at which to keep photos: their own, up to `max_side`."""
    some = photos[:: max(1, len(photos) // samples)]
    return min(
        max_side, int(np.median([min(info.width, info.height) for info in _use_each_photo(some, identify)]))
    )


def _use_each_photo(photos: Sequence[LabelledPhoto], use: Callable[[bytes], Used]) -> Iterator[Used]:
    for photo, data in zip(photos, LabelledPictures.read(photos), strict=True):
        try:
            yield use(data)
        except PictureError as exc:
            raise BadData(f"{photo.source}: {photo.name}: {exc}") from exc


def _sources(data: Path) -> dict[str, Path]:
    """Return the parts of `data`; none if it is one zip or one folder of class folders."""
    if not data.exists():
        raise BadData(f"{data} does not exist: --data names a folder of photos or a zip")
    if not data.is_dir():
        return {}
    sources: dict[str, Path] = {}
    for entry in sorted(data.iterdir()):
        name = entry.name if entry.is_dir() else ""
        name = entry.stem if entry.suffix == ".zip" else name
        for part, names in PARTS.items():
            if name.lower() in names:
                sources.setdefault(part, entry)
    return sources


def _others_in(names: Sequence[str]) -> list[str]:
    """Return the `names` in a folder of pictures that show none of the classes."""
    return [name for name in names if name.split("/")[0] in PARTS[OTHER]]


def _is_divided(data: Path) -> bool:
    return not _sources(data).keys() <= {OTHER}


def _members(source: Path) -> list[str]:
    if source.is_dir():
        names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    else:
        try:
            with zipfile.ZipFile(source) as archive:
                names = [info.filename for info in archive.infolist() if not info.is_dir()]
        except ZIP_ERRORS as exc:
            raise BadData(f"{source} is not a zip that can be read: {error_summary(exc)}") from exc
    shown = (name for name in names if not any(s.startswith((".", "__MACOSX")) for s in name.split("/")))
    return sorted(name for name in shown if Path(name).suffix.lower() in SUFFIXES)


def _is_held_out(photo: LabelledPhoto, part: str) -> bool:
    # The file's own name, not its folder's: it stays in its part when the class folders are renamed.
    name = f"{part} {Path(photo.name).name}"
    return zlib.crc32(name.encode(errors="surrogateescape")) % _HELD_OUT[part] == 0


def _part_of(photo: LabelledPhoto) -> str:
    return next((part for part in ("test", "validation") if _is_held_out(photo, part)), "train")
