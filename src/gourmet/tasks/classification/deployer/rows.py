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
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.tasks.classification.deployer.deployment import Rows, example_rows
from gourmet.tasks.classification.deployer.networks import MEAN, STD, Network
from gourmet.tasks.classification.labelled_pictures import ALL, LabelledPictures, decode

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


def examples_of(info: ModelInfo, options: ClientOptions, network: Network | None) -> Examples:
    """Those that `options` name, for a model that takes pictures; Triton refuses another precision."""
    shapes = [each.shape for each in info.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 3:
        raise UsageError(
            f"{info.name} takes {', '.join(str(list(shape)) for shape in shapes)}; asked are networks of "
            "pictures, [N, 3, …]"
        )
    data, side = options.data, shapes[0][3]
    if data and data.is_dir():
        return _of_pictures(info, data, side, network)
    if data is None:
        rows = example_rows(side, options.count, options.seed)[: options.count]
        about = f"{len(rows)} rows of noise, seed {options.seed}"
    else:
        kind = np.dtype(np.float16 if options.half else np.float32)
        try:
            rows = np.fromfile(data, kind).reshape(-1, 3, side, side)
        except (OSError, ValueError) as exc:
            raise UsageError(
                f"--inference_data {data} is not whole rows of {kind} [3, {side}, {side}]: {exc}"
            ) from exc
        about = f"{len(rows)} rows of {data.name}"
    names = [f"row {number}" for number in range(len(rows))]
    return Examples(about, names, lambda first, last: rows[first:last])


def _of_pictures(info: ModelInfo, folder: Path, side: int, network: Network | None) -> Examples:
    """Prepared as the network of --config wants it, or else as those of ImageNet do."""
    mean, std = (network.mean, network.std) if network else (MEAN, STD)
    prepared = PictureClassifier(info.name, "", "", info.name, (), folder, side, mean=mean, std=std)
    folder = folder / _VALIDATION if (folder / _VALIDATION).is_dir() else folder
    said = info.parameters.get(LABELS_PARAMETER, "")
    labels = json.loads(said) if said else sorted(each.name for each in folder.iterdir() if each.is_dir())
    photos = LabelledPictures(tuple(labels)).listing(folder, ALL)

    def read(first: int, last: int) -> Rows:
        (pixels,) = decode([photos[first:last]], side)
        return prepared.normalise(pixels.images)

    classes = np.array([photo.class_id for photo in photos], dtype=np.int64)
    return Examples(f"{len(photos)} pictures of {folder}", [each.name for each in photos], read, classes)
