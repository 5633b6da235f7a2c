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
from gourmet.served.files import written_aside
from gourmet.training.linear_layer import Classes, Floats, Layer

_SUFFIX: Final = ".rehearsal.safetensors"
_TYPES: Final = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}
_OF: Final = "before the last layer"


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
    # The layer learned all rows, and `before` are the answers of layers that were each solved without some.
    is_crossed: bool = False

    @classmethod
    def rounded(
        cls, activations: Floats, classes: Classes, held: npt.NDArray[np.bool_], layer: Layer, of: str
    ) -> Rehearsal:
        """Return a set with activations as they are read again, and the answers of `layer` to them."""
        scale = np.maximum(activations.max(axis=0) / 255, 1e-9).astype(np.float32)
        activations = (activations / scale).round().clip(0, 255) * scale
        return cls(activations, classes, held, layer(activations), scale, of)

    def write(self, weights: Path) -> Path:
        """Write the set beside the weights that it belongs to, as safetensors."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "scale": self.scale.astype(np.float32),
            "before": self.before.astype(np.float16),
            "activations": (self.activations / self.scale).round().astype(np.uint8),
            "classes": self.classes.astype(np.uint8),
            "held": self.held.astype(np.uint8),
        }
        names, header, first = {dtype: name for name, dtype in _TYPES.items()}, dict[str, Any](), 0
        for name, array in arrays.items():
            last = first + array.nbytes
            dtype = names[array.dtype.type]
            header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [first, last]}
            first = last
        about = {_OF: self.of, "crossed": self.is_crossed}
        text = json.dumps({"__metadata__": {"about": json.dumps(about)}, **header}).encode()
        text += b" " * (-len(text) % 8)
        with written_aside(rehearsal_path(weights)) as aside:
            parts = [len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays.values())]
            aside.write_bytes(b"".join(parts))
        return rehearsal_path(weights)

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
    if not rehearsal_path(weights).exists():
        return None
    kept = load_rehearsal(weights)
    if kept.of != of:
        return None
    labels = len(layer.bias)
    if kept.activations.shape[1] != layer.weight.shape[1] or kept.before.shape[1] != labels:
        raise _damaged(weights)
    if kept.classes.max() > labels:
        raise _damaged(weights)
    return kept


def load_rehearsal(weights: Path) -> Rehearsal:
    """Return the set beside `weights`, whatever network it is of."""
    try:
        arrays, about = _arrays(rehearsal_path(weights))
        kept = Rehearsal(
            arrays["activations"] * arrays["scale"],
            arrays["classes"].astype(np.int64),
            arrays["held"].astype(bool),
            arrays["before"].astype(np.float32),
            arrays["scale"],
            str(about.get(_OF)),
            bool(about.get("crossed")),
        )
        if len({len(kept.activations), len(kept.classes), len(kept.held), len(kept.before)}) > 1:
            raise ValueError("its parts differ in length")
    except (LookupError, ValueError) as exc:
        raise _damaged(weights) from exc
    return kept


def _damaged(weights: Path) -> GourmetError:
    return GourmetError(
        f"{rehearsal_path(weights)} is not a rehearsal set: make it again with `gourmet train --rehearse`"
    )


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
