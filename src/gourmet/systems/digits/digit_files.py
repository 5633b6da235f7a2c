"""The files that digits come in. Whatever is wrong with one is said with its name."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.pictures.decode import Pixels
from gourmet.systems.digits import contract
from gourmet.tasks.datasets import BadData

_SIDE: Final = contract.SYSTEM.input_size
_KAGGLE: Final = ("label", *(f"pixel{i}" for i in range(_SIDE * _SIDE)))
_UCI_SIDE: Final = 8
_UCI_INK: Final = 16
_IDX_PREFIXES: Final = {"train": "train", "test": "t10k"}
_IDX_MAGIC: Final = {"images": 0x0803, "labels": 0x0801}  # unsigned bytes, in three dimensions or one
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class LabelledDigits:
    """Digits as they lay in `source`, brought into the contract's layout if they were not."""

    source: Path
    images: Pixels  # [N, 28, 28]
    classes: npt.NDArray[np.int64]


def read(data: Path) -> dict[str, LabelledDigits]:
    """The digits in `data` by part; all under "train" where it is not divided."""
    if not data.exists():
        raise BadData(f"{data} does not exist: --data names digits, in a CSV or in a folder of idx files")
    folder = data if data.is_dir() else data.parent
    if data.is_dir() or "-ubyte" in data.name:
        parts = {part: _pair(folder, prefix) for part, prefix in _IDX_PREFIXES.items()}
        found = {part: _idx(*pair) for part, pair in parts.items() if pair}
        if "train" in found:
            return found
    if data.is_dir():
        data = folder / "train.csv"
        if not data.is_file():
            raise BadData(f"{folder} holds neither train.csv nor train-images-idx3-ubyte (or .gz)")
    return {"train": _csv(data)}


def _csv(path: Path) -> LabelledDigits:
    try:
        text = _content(path).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise BadData(f"{path} is not a CSV: {exc}") from exc
    head = text.partition("\n")[0].strip().replace('"', "").split(",")
    if head[0] == "label":
        if tuple(head) != _KAGGLE:
            raise BadData(
                f"{path} has {len(head)} columns from {head[0]} to {head[-1]}; "
                f"label,pixel0,…,{_KAGGLE[-1]} are needed"
            )
        rows = _numbers(path, text.splitlines()[1:], len(_KAGGLE))
        classes, ink = _checked(path, rows[:, 0], rows[:, 1:], 255)
        return LabelledDigits(path, ink.astype(np.uint8).reshape(-1, _SIDE, _SIDE), classes)
    if head[0] == "pixel0":
        raise BadData(f"{path} has no column label: these are digits to guess at; train.csv has labels")
    if len(head) != _UCI_SIDE**2 + 1:
        raise BadData(
            f"{path} has {len(head)} columns and no head; a CSV of digits begins with "
            f"label,pixel0,…,{_KAGGLE[-1]}, or has 64 values and the digit in every line"
        )
    rows = _numbers(path, text.splitlines(), len(head))
    classes, ink = _checked(path, rows[:, -1], rows[:, :-1], _UCI_INK)
    cells = ink.reshape(-1, _UCI_SIDE, _UCI_SIDE)
    return LabelledDigits(path, np.stack([contract.layout(cell) for cell in cells]), classes)


def _numbers(path: Path, lines: list[str], columns: int) -> npt.NDArray[np.int32]:
    if not any(line.strip() for line in lines):
        raise BadData(f"{path} holds no digits")
    try:
        rows = np.loadtxt(lines, dtype=np.int32, delimiter=",", ndmin=2)
    except (ValueError, OverflowError) as exc:
        raise BadData(f"{path} is not all whole numbers, {columns} in each line: {exc}") from exc
    if rows.shape[1] != columns:
        raise BadData(f"{path} has {rows.shape[1]} columns, {columns} are needed and a line a digit")
    return rows


def _checked(
    path: Path, classes: npt.NDArray[Any], ink: npt.NDArray[Any], most: int, labels: Path | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """`classes` and `ink` [N, pixels], all of them digits, and ink from 0 to `most` on each."""
    wrong = np.flatnonzero((classes < 0) | (classes >= len(contract.SYSTEM.labels)))
    if len(wrong):
        where = f"{labels or path}: number {wrong[0] + 1}"
        raise BadData(f"{where} is labelled {classes[wrong[0]]}, which is not a digit")
    rows, columns = np.nonzero((ink < 0) | (ink > most))
    if len(rows):
        value = ink[rows[0], columns[0]]
        raise BadData(f"{path}: number {rows[0] + 1} has a pixel of {value}; ink is from 0 to {most}")
    blank = np.flatnonzero(ink.max(axis=1) == 0)
    if len(blank):
        raise BadData(f"{path}: number {blank[0] + 1} is blank")
    return classes.astype(np.int64), ink


def _pair(folder: Path, prefix: str) -> tuple[Path, Path] | None:
    """The images and labels of a part, if the folder has them."""
    images, labels = (_idx_file(folder, f"{prefix}-{what}") for what in ("images-idx3", "labels-idx1"))
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        missing = "images-idx3" if images is None else "labels-idx1"
        raise BadData(f"{folder} lacks {prefix}-{missing}-ubyte (or .gz), which goes with {images or labels}")
    return images, labels


def _idx_file(folder: Path, stem: str) -> Path | None:
    names = (f"{stem}-ubyte", f"{stem}-ubyte.gz", f"{stem.replace('-idx', '.idx')}-ubyte")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _idx(images: Path, labels: Path) -> LabelledDigits:
    pictures, classes = _array(images, "images"), _array(labels, "labels")
    if pictures.shape[1:] != (_SIDE, _SIDE):
        raise BadData(f"{images} holds images of {pictures.shape[1]}×{pictures.shape[2]}, not 28×28")
    if len(pictures) != len(classes):
        raise BadData(f"{images} holds {len(pictures)} images, {labels} {len(classes)} labels")
    numbers, _ = _checked(images, classes, pictures.reshape(len(pictures), -1), 255, labels)
    return LabelledDigits(images, pictures, numbers)


def _array(path: Path, kind: str) -> npt.NDArray[np.uint8]:
    data = _content(path)
    magic = int.from_bytes(data[:4], "big")
    if len(data) < 4 or magic != _IDX_MAGIC[kind]:
        raise BadData(
            f"{path} is not an idx file of {kind}: it begins with {data[:4].hex() or 'nothing'}, "
            f"not {_IDX_MAGIC[kind]:08x}"
        )
    head = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, min(head, len(data)), 4))
    if len(data) < head or len(data) - head != prod(shape):
        size = "×".join(map(str, shape))
        raise BadData(
            f"{path} is cut short or has something appended: "
            f"{size} bytes should follow its head of {head}, and {max(0, len(data) - head)} do"
        )
    if not prod(shape):
        raise BadData(f"{path} holds no digits")
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)


def _content(path: Path) -> bytes:
    """The file, unpacked if it is gzip whatever its name says."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, zlib.error) as exc:  # gzip.BadGzipFile is an OSError
        raise BadData(f"{path} cannot be read: {exc}") from exc
