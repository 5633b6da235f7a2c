"""Activations of photos that a network was trained on, kept beside its weights to learn more and to compare.

The photos themselves cannot be shipped. Activations before the last layer, in eight bits, are enough to train
that layer without its forgetting what it knew, and to tell whether it did: some are held out for that, with
what the network answered when the set was made. The layers before must stay as they are.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.errors import GourmetError
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.picture_scores import LabelledScores, shares
from gourmet.pictures.certainty import relevance
from gourmet.pictures.classifier import PictureClassifier
from gourmet.training.linear_layer import Classes, Floats, Layer

_SUFFIX: Final = ".rehearsal.safetensors"
_TYPES: Final = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}


def rehearsal_path(weights: Path) -> Path:
    """Return the path of the set that belongs to these weights, if there is one."""
    return weights.with_suffix(_SUFFIX)


def copy_rehearsal(weights: Path, exported: Path) -> None:
    """Put the set of `weights` beside the file that they are `exported` to, in place of another's."""
    rehearsal_path(exported).unlink(missing_ok=True)
    if rehearsal_path(weights).exists():
        shutil.copyfile(rehearsal_path(weights), rehearsal_path(exported))


@dataclass(frozen=True)
class Rehearsal:
    """Rows of activations and their classes; a class equal to the number of labels means none of them."""

    activations: Floats  # [rows, width]
    classes: Classes
    held: npt.NDArray[np.bool_]  # kept apart, to compare by
    before: Floats  # [rows, labels]: the logits of the network that was trained on the photos
    scale: Floats  # [width]: what a step of the eight bits is
    of: str  # a digest of the layers before the last

    def shares(
        self, layer: Layer | None, calibration: Calibration, system: PictureClassifier
    ) -> dict[str, tuple[float, int]]:
        """Measure `layer`, or else the network that the set was made of, on the held-out rows."""
        logits = layer(self.activations[self.held]) if layer else self.before[self.held]
        level = relevance(logits) if system.subject else None
        return shares(LabelledScores(logits, self.classes[self.held], relevance=level), calibration, system)


def read_rehearsal(weights: Path, of: str, layer: Layer) -> Rehearsal | None:
    """Return the set beside `weights`; None if there is none, or if it belongs to another network.

    `of` is the digest of the layers before `layer`, the last one.
    """
    path = rehearsal_path(weights)
    if not path.exists():
        return None
    try:
        arrays, about = _arrays(path)
        if about.get("before the last layer") != of:
            return None
        kept = Rehearsal(
            arrays["activations"] * arrays["scale"],
            arrays["classes"].astype(np.int64),
            arrays["held"].astype(bool),
            arrays["before"].astype(np.float32),
            arrays["scale"],
            of,
        )
        rows, labels = layer(kept.activations).shape
        sizes = {rows, len(kept.classes), len(kept.held), len(kept.before)}
        if len(sizes) > 1 or kept.before.shape[1] != labels or kept.classes.max() > labels:
            raise ValueError(f"{rows} rows of {labels} labels, and others do not fit them")
    except (LookupError, ValueError) as exc:
        raise GourmetError(
            f"{path} is not a rehearsal set: make it again with `gourmet train --rehearse`"
        ) from exc
    return kept


def _arrays(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Read the arrays of a .safetensors file: the length of its header, the header as JSON, the numbers."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    about = json.loads(header.pop("__metadata__", {}).get("about", "{}"))
    arrays = {}
    for name, tensor in header.items():
        first, last = (start + offset for offset in tensor["data_offsets"])
        numbers = np.frombuffer(content[first:last], _TYPES[tensor["dtype"]])
        arrays[name] = numbers.reshape(tensor["shape"])
    return arrays, about
