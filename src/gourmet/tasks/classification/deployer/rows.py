"""The rows that a served network is asked about: noise, a file of them, or labelled pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gourmet.contracts import LABELS_PARAMETER, ModelInfo
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError, square_pixels
from gourmet.tasks.classification.deployer.deployment import Rows, example_rows
from gourmet.tasks.classification.deployer.networks import Network
from gourmet.tasks.classification.labelled_pictures import ALL, LabelledPictures

TYPES: Final = {"FP32": np.float32, "FP16": np.float16}
# Where NVIDIA's scripts put the pictures of ImageNet that nobody trained on.
_VALIDATION: Final = "val-jpeg"


@dataclass(frozen=True)
class ClientOptions:
    """What to ask, and what to compare the answers with."""

    model: str
    batch_size: int = 1
    half: bool = False
    data: Path | None = None
    count: int = 64
    seed: int = 0
    config: str = ""
    reference: Path | None = None
    min_top1: float | None = None
    min_agreement: float | None = None
    max_difference: float | None = None

    def __post_init__(self) -> None:
        if self.reference and not self.config:
            raise UsageError("--reference needs --config, which says what network the checkpoint is of")
        if not self.reference and (self.min_agreement is not None or self.max_difference is not None):
            raise UsageError("--min-agreement and --max-difference need a --reference to compare with")


@dataclass(frozen=True)
class Examples:
    """Rows by name, read a batch at a time, and what each shows where that is known."""

    about: str
    names: Sequence[str]
    read: Callable[[int, int], Rows]
    classes: npt.NDArray[np.int64] | None = None


def side_of(info: ModelInfo, options: ClientOptions) -> int:
    """How large the pictures are that the model takes."""
    match info.inputs:
        case [only] if len(only.shape) == 4 and only.shape[1] == 3 and only.datatype in TYPES:
            pass
        case _:
            takes = ", ".join(f"{each.name} {each.datatype} {list(each.shape)}" for each in info.inputs)
            raise UsageError(
                f"{info.name} takes {takes}; asked are networks of pictures, FP32 or FP16 [N, 3, …]"
            )
    if (only.datatype == "FP16") != options.half:
        raise UsageError(f"{info.name} takes {only.datatype}: {'drop' if options.half else 'add'} --fp16")
    if info.max_batch_size and options.batch_size > info.max_batch_size:
        raise UsageError(
            f"--batch_size {options.batch_size} is above the {info.max_batch_size} rows that {info.name} "
            "takes"
        )
    return only.shape[3]


def examples_of(info: ModelInfo, options: ClientOptions, side: int, network: Network | None) -> Examples:
    data = options.data
    if data is None:
        rows = example_rows(side, options.count, options.seed)[: options.count]
        return _of_rows(rows, f"{len(rows)} rows of noise, seed {options.seed}")
    if data.is_dir():
        return _of_pictures(info, data, side, network)
    kind = np.dtype(TYPES["FP16" if options.half else "FP32"])
    try:
        values = np.fromfile(data, kind)
    except OSError as exc:
        raise UsageError(f"--inference_data {data} cannot be read: {exc.strerror}") from exc
    row = 3 * side * side
    if not values.size or values.size % row:
        raise UsageError(
            f"--inference_data {data} has {data.stat().st_size} bytes, which are not whole rows of {kind} "
            f"[3, {side}, {side}], {row * kind.itemsize} bytes each"
        )
    return _of_rows(values.reshape(-1, 3, side, side), f"{values.size // row} rows of {data.name}")


def _of_rows(rows: Rows, about: str) -> Examples:
    names = [f"row {number}" for number in range(len(rows))]
    return Examples(about, names, lambda first, last: rows[first:last])


def _of_pictures(info: ModelInfo, folder: Path, side: int, network: Network | None) -> Examples:
    """Prepared as the network of --config wants it, or else as those of ImageNet do."""
    prepared = PictureClassifier(info.name, info.name, "", info.name, (), folder, side)
    if network:
        prepared = PictureClassifier(
            info.name, info.name, "", info.name, (), folder, side, mean=network.mean, std=network.std
        )
    folder = folder / _VALIDATION if (folder / _VALIDATION).is_dir() else folder
    said = info.parameters.get(LABELS_PARAMETER, "")
    labels = json.loads(said) if said else sorted(each.name for each in folder.iterdir() if each.is_dir())
    photos = LabelledPictures(tuple(labels)).listing(folder, ALL)

    def read(first: int, last: int) -> Rows:
        batch = []
        for photo, picture in zip(photos[first:last], LabelledPictures.read(photos[first:last]), strict=True):
            try:
                batch.append(square_pixels(picture, side))
            except PictureError as exc:
                raise GourmetError(f"{photo.name} cannot be used: {exc}") from exc
        return prepared.normalise(np.stack(batch))

    classes = np.array([photo.class_id for photo in photos], dtype=np.int64)
    return Examples(f"{len(photos)} pictures of {folder}", [each.name for each in photos], read, classes)
