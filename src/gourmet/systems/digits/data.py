"""Read labelled digits from files and folders, and lay them out as the contract says.

Data are one of
    digits.csv.gz              scikit-learn's own: 64 values from 0 to 16 and the digit a line, no head
    train.csv                  Kaggle's Digit Recognizer: label,pixel0,…,pixel783; or its folder
    train-images-idx3-ubyte,   MNIST's own files, plain or .gz, in a folder; with t10k-… beside them,
    train-labels-idx1-ubyte    those are the test part
Where no test part is given, a fifth of every digit is held out as one; a tenth of the rest is for
validation. The drawing of lots has a fixed seed, so the parts of the same file never change. Beside these,
whatever the data, there are a part of digits drawn by strokes and a part of pictures that show no digit
(scribbles, shapes, letters, pieces of pictures), both by a hand less steady than those to learn from.
"""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.evaluation.system_parts import BadData, EmptyPart, check_part, sample_per_class
from gourmet.pictures import made_up
from gourmet.pictures.decode import Pixels
from gourmet.pictures.label_folders import OTHER
from gourmet.systems.digits import contract, strokes

PARTS: Final = ("train", "validation", "test")
DRAWN: Final = "drawn"
_SEED: Final = 1998
_DRAWN_EACH: Final = 60
_NO_DIGITS_EACH: Final = 100
_PHOTOS: Final = ("china.jpg", "flower.jpg")  # scikit-learn's own

_SIDE: Final = contract.SYSTEM.input_size
_CELLS: Final = 8  # across, of scikit-learn's digits, whose ink is from 0 to 16
_IDX_PREFIXES: Final = {"train": "train", "test": "t10k"}
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class LabelledDigit:
    """A labelled digit; `name` is unique within its data."""

    name: str
    class_id: int
    image: Pixels  # uint8 [28, 28]


def bundled() -> tuple[Path, str]:
    """Return digits that need no download, and their description."""
    return _scikit_learns("data/digits.csv.gz"), "scikit-learn's 1,797 digits of 8×8"


def _scikit_learns(file: str) -> Path:
    return Path(str(distribution("scikit-learn").locate_file(f"sklearn/datasets/{file}")))


class DigitData:
    """Fulfils `gourmet.evaluation.system_parts.Data`."""

    def listing(self, data: Path, part: str, limit: int | None = None) -> tuple[LabelledDigit, ...]:
        """Return the digits of one part of `data`; with a `limit`, evenly from its classes."""
        check_part(part, (*PARTS, DRAWN, OTHER))
        if part == DRAWN:
            digits: Sequence[LabelledDigit] = drawn(_DRAWN_EACH, _SEED, strokes.UNSTEADY)
        elif part == OTHER:
            digits = no_digits(_NO_DIGITS_EACH, _SEED, strokes.UNSTEADY)
        else:
            digits = _divided(data)[part]
        if not digits:
            raise EmptyPart(f"{data} has too few digits for a {part} part")
        return sample_per_class(digits, limit)

    def parts(self, data: Path) -> tuple[str, ...]:
        measured = tuple(part for part in PARTS if part != "train" and _divided(data)[part])
        return (*measured, DRAWN, OTHER) if measured else ()

    def read(self, digits: Sequence[LabelledDigit]) -> Iterator[bytes]:
        """Yield each digit as a picture that a client could send."""
        return (contract.png(Image.fromarray(digit.image)) for digit in digits)


DATA: Final = DigitData()


def drawn(count: int, seed: int, trembling: float = strokes.STEADY) -> list[LabelledDigit]:
    """Draw `count` digits of each class by strokes."""
    return [
        LabelledDigit(f"{DRAWN}:{row}", class_id, image)
        for row, (class_id, image) in enumerate(strokes.drawn(count, seed, trembling), 1)
    ]


@functools.lru_cache(maxsize=2)  # one verb measures with the same ones several times
def no_digits(count: int, seed: int, trembling: float = strokes.STEADY) -> list[LabelledDigit]:
    """Return some `count` pictures of every kind that shows no digit, without those that are refused."""
    system, none = contract.SYSTEM, len(contract.SYSTEM.labels)
    pictures = filter(system.is_read, [*made_up.pictures(count, seed), *_photo_pieces(count, seed)])
    images = [*strokes.no_digits(count, seed, trembling), *map(system.pixels, pictures)]
    read = [image for image in images if system.is_read(contract.png(Image.fromarray(image)))]
    return [LabelledDigit(f"{OTHER}:{row}", none, image) for row, image in enumerate(read, 1)]


def _photo_pieces(count: int, seed: int) -> Iterator[bytes]:
    """Cut squares out of photos, turned by chance."""
    random = np.random.default_rng(seed)
    photos = [Image.open(_scikit_learns(f"images/{name}")).convert("RGB") for name in _PHOTOS]
    for number in range(count):
        photo = photos[number % len(photos)]
        side = int(random.integers(40, min(photo.size)))
        left, top = random.integers(0, photo.width - side), random.integers(0, photo.height - side)
        piece = photo.crop((int(left), int(top), int(left) + side, int(top) + side))
        yield contract.png(piece.rotate(90 * int(random.integers(4))))


@functools.lru_cache(maxsize=2)
def _divided(data: Path) -> dict[str, Sequence[LabelledDigit]]:
    """Return `data` by part. Cached, since verbs read part after part, and large files take long."""
    parts = _read_digits(data)
    lots = np.random.default_rng(_SEED)
    if "test" not in parts:
        parts["test"], parts["train"] = _hold_out(parts["train"], 5, lots)
    parts["validation"], parts["train"] = _hold_out(parts["train"], 10, lots)
    return parts


def _hold_out(
    digits: Sequence[LabelledDigit], one_in: int, lots: np.random.Generator
) -> tuple[Sequence[LabelledDigit], Sequence[LabelledDigit]]:
    """Split off a random share of every class; keep the order of both parts."""
    held: set[int] = set()
    for class_id in range(len(contract.SYSTEM.labels)):
        of_class = [index for index, digit in enumerate(digits) if digit.class_id == class_id]
        held.update(lots.permutation(of_class)[: round(len(of_class) / one_in)])
    return (
        [digit for index, digit in enumerate(digits) if index in held],
        [digit for index, digit in enumerate(digits) if index not in held],
    )


def _read_digits(data: Path) -> dict[str, Sequence[LabelledDigit]]:
    """Return the digits in `data` by part; all are in "train" if it is not divided."""
    if not data.is_dir():
        return {"train": _csv(data)}
    parts = {part: _idx(data, prefix) for part, prefix in _IDX_PREFIXES.items() if _there(data, prefix)}
    if "train" in parts:
        return parts
    if not (data / "train.csv").is_file():
        raise BadData(f"{data} holds neither train.csv nor train-images-idx3-ubyte (or .gz)")
    return {"train": _csv(data / "train.csv")}


def _csv(path: Path) -> Sequence[LabelledDigit]:
    lines = _content(path).decode("utf-8", "replace").splitlines()  # what is not text is not numbers either
    kaggles = bool(lines) and lines[0].startswith("label,")
    cells = _SIDE**2 if kaggles else _CELLS**2
    try:
        if not lines[kaggles:]:
            raise ValueError("it holds no digits")
        rows = np.loadtxt(lines[kaggles:], dtype=np.int32, delimiter=",", ndmin=2)
        if rows.shape[1] != 1 + cells:
            raise ValueError(f"it has {rows.shape[1]} columns")
    except (ValueError, OverflowError) as exc:
        raise BadData(
            f"{path} is not lines of {1 + _SIDE**2} whole numbers below label,pixel0,…, nor of "
            f"{1 + _CELLS**2} below nothing: {exc}"
        ) from exc
    if kaggles:
        return _digits(path, rows[:, 0], rows[:, 1:], 255)
    return _digits(path, rows[:, -1], rows[:, :-1], 2 * _CELLS)


def _there(folder: Path, prefix: str) -> list[Path]:
    return sorted(folder.glob(f"{prefix}-images-idx3-ubyte*"))


def _idx(folder: Path, prefix: str) -> Sequence[LabelledDigit]:
    """Read the digits of a part."""
    images = _there(folder, prefix)[0]
    labels = images.with_name(images.name.replace("images-idx3", "labels-idx1"))
    ink, classes = _array(images, 3), _array(labels, 1)
    if ink.shape != (len(classes), _SIDE, _SIDE):
        shape = "×".join(map(str, ink.shape))
        raise BadData(f"{images} holds {shape} pixels, {labels} {len(classes)} labels, of 28×28 pixels each")
    return _digits(images, classes, ink.reshape(len(ink), -1), 255)


def _array(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    data = _content(path)
    magic, head = bytes((0, 0, 8, axes)), 4 + 4 * axes  # unsigned bytes
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, head, 4))
    if data[:4] != magic or len(data) != head + prod(shape) or not prod(shape):
        raise BadData(f"{path} is not a whole idx file of unsigned bytes with {axes} axes")
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)


def _digits(
    path: Path, classes: npt.NDArray[Any], ink: npt.NDArray[Any], max_ink: int
) -> Sequence[LabelledDigit]:
    """Make a digit of each row of `ink` (0 to `max_ink`); lay it out unless it has 28×28 pixels."""
    low, high = ink.min(axis=1), ink.max(axis=1)
    bad = (
        (classes < 0) | (classes >= len(contract.SYSTEM.labels)) | (low < 0) | (high > max_ink) | (high == 0)
    )
    if bad.any():
        row = int(bad.argmax())
        raise BadData(
            f"{path}: number {row + 1} is labelled {classes[row]}, its ink is from {low[row]} to "
            f"{high[row]}; digits are 0 to 9, and ink is from 0 to {max_ink} and not all 0"
        )
    if ink.shape[1] == _SIDE**2:
        images = ink.astype(np.uint8).reshape(-1, _SIDE, _SIDE)
    else:
        images = np.stack([contract.layout(cells) for cells in ink.reshape(-1, _CELLS, _CELLS)])
    return [
        LabelledDigit(f"{path.name}:{row}", int(class_id), image)
        for row, (class_id, image) in enumerate(zip(classes, images, strict=True), 1)
    ]


def _content(path: Path) -> bytes:
    """Return the file's content, unpacked if it is gzip; its name does not matter."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, zlib.error) as exc:  # gzip.BadGzipFile is an OSError
        raise BadData(f"{path} cannot be read: {exc}") from exc
