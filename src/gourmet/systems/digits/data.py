"""Labelled digits, wherever they lie, laid out as the contract says.

Data are one of
    digits.csv.gz              scikit-learn's own: 64 values from 0 to 16 and the digit a line, no head
    train.csv                  Kaggle's Digit Recognizer: label,pixel0,…,pixel783; or its folder
    train-images-idx3-ubyte,   MNIST's own files, plain or .gz, in a folder; with t10k-… beside them,
    train-labels-idx1-ubyte    those are the test part
Where no test part is given, a fifth of every digit is held out as one; a tenth of the rest is for
validation. The drawing of lots has a fixed seed, so the parts of the same file never change.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.pictures.decode import Pixels
from gourmet.systems.digits import digit_files
from gourmet.tasks.datasets import BadData, EmptyPart, check_part, evenly

PARTS: Final = ("train", "validation", "test")
_ONE_IN: Final = {"test": 5, "validation": 10}
_SEED: Final = 1998


@dataclass(frozen=True)
class Digit:
    """A labelled digit; `name` is unique within its data."""

    name: str
    class_id: int
    image: Pixels  # uint8 [28, 28]


def bundled() -> tuple[Path, str]:
    """Digits that need no download, and what they are."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise BadData(
            "scikit-learn, which brings digits along, is not installed: "
            "run `pip install -r requirements.txt`, or name other digits with --data"
        )
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return path, "scikit-learn's 1,797 digits of 8×8"


class Digits:
    """Fulfils `gourmet.tasks.furniture.Data`."""

    def listing(self, data: Path, part: str, limit: int | None = None) -> tuple[Digit, ...]:
        """The digits of one part of `data`; with a `limit`, evenly from its classes."""
        check_part(part, PARTS)
        digits = _divided(data)[part]
        if not digits:
            raise EmptyPart(f"{data} has too few digits for a {part} part")
        return evenly(digits, limit)

    def parts(self, data: Path) -> tuple[str, ...]:
        """The parts of `data` to measure on."""
        return tuple(part for part in PARTS if part != "train" and _divided(data)[part])

    def read(self, digits: Sequence[Digit]) -> Iterator[bytes]:
        """Each digit as a picture that a client could send."""
        for digit in digits:
            buffer = io.BytesIO()
            Image.fromarray(digit.image).save(buffer, "PNG")
            yield buffer.getvalue()


DATA: Final = Digits()


@functools.lru_cache(maxsize=2)
def _divided(data: Path) -> dict[str, tuple[Digit, ...]]:
    """`data` by part. Kept, since verbs ask for part after part, and large files take long to read."""
    files = digit_files.read(data)
    found = {name: _digits(labelled) for name, labelled in files.items()}
    lots = np.random.default_rng(_SEED)
    rest = found.get("train", ())
    if "test" not in found:
        found["test"], rest = _hold_out(rest, _ONE_IN["test"], lots)
    found["validation"], found["train"] = _hold_out(rest, _ONE_IN["validation"], lots)
    return found


def _digits(labelled: digit_files.LabelledDigits) -> tuple[Digit, ...]:
    source = labelled.source.name
    return tuple(
        Digit(f"{source}:{row}", int(class_id), image)
        for row, (class_id, image) in enumerate(zip(labelled.classes, labelled.images, strict=True), 1)
    )


def _hold_out(
    digits: Sequence[Digit], one_in: int, lots: np.random.Generator
) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
    """One in so many of every class, by lot, and the rest; both in the order in which they lay."""
    classes = np.array([digit.class_id for digit in digits], dtype=np.int64)
    held = np.zeros(len(digits), dtype=np.bool_)
    for class_id in np.unique(classes):
        mine: npt.NDArray[np.int64] = lots.permutation(np.flatnonzero(classes == class_id))
        held[mine[: round(len(mine) / one_in)]] = True
    return (
        tuple(digit for digit, out in zip(digits, held, strict=True) if out),
        tuple(digit for digit, out in zip(digits, held, strict=True) if not out),
    )
