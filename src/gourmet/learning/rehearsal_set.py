"""Make the rehearsal set of a network (gourmet.evaluation.rehearsal) from photos that it was trained on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from gourmet.evaluation.labelled_pictures import OTHER_TRAIN, LabelledPictures, decode
from gourmet.evaluation.rehearsal import Rehearsal, rehearsal_path
from gourmet.evaluation.system_parts import BadData, sample_per_class
from gourmet.learning import augment
from gourmet.pictures import made_up
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.label_folders import OTHER
from gourmet.progress import ReportProgress
from gourmet.training.files import save_tensors
from gourmet.training.last_layer import LastLayer

# Pictures of each class, and as many of none, half of which are made up.
LEARNED: Final = 250
HELD: Final = 120
_AT_ONCE: Final = 64


def make_rehearsal(
    system: PictureClassifier, data: LabelledPictures, network: nn.Module, photos: Path, tick: ReportProgress
) -> Rehearsal:
    """Make the set of a network that was trained on these photos."""
    last, labels = LastLayer(network.cpu().eval()), len(system.labels)
    apart = list(data.listing(photos, "validation"))
    with contextlib.suppress(BadData):  # photos for training alone
        apart += data.listing(photos, "test")
    to_learn, held = data.listing(photos, "train", LEARNED * labels), sample_per_class(apart, HELD * labels)
    drawn = np.empty((0, system.input_size, system.input_size, 3), np.uint8)
    if system.subject:
        to_learn = (*to_learn, *sample_per_class(data.listing(photos, OTHER_TRAIN), LEARNED // 2))
        held = (*held, *(data.listing(photos, OTHER, HELD) if OTHER in data.parts(photos) else ()))
        drawn = made_up.squares(LEARNED // 2 + HELD, 0, system.input_size)
    listed = (*to_learn, *held)
    rows = []
    for first in range(0, len(listed), _AT_ONCE):
        (pixels,) = decode([listed[first : first + _AT_ONCE]], system.input_size)
        rows.append(last.activations(augment.served(torch.from_numpy(pixels.images), system)))
        tick((first + len(pixels.photos)) / len(listed))
    for some in torch.split(torch.from_numpy(drawn), _AT_ONCE):
        rows.append(last.activations(augment.served(some, system)))
    activations = np.concatenate(rows)
    classes = np.array([photo.class_id for photo in listed] + [labels] * len(drawn))
    is_held = np.zeros(len(classes), bool)
    is_held[len(to_learn) : len(listed)] = True
    is_held[len(listed) + LEARNED // 2 :] = True
    # As they are read again.
    scale = np.maximum(activations.max(axis=0) / 255, 1e-9)
    activations = (activations / scale).round().clip(0, 255) * scale
    return Rehearsal(activations, classes, is_held, last.layer(activations), scale, last.before_it)


def write_rehearsal(kept: Rehearsal, weights: Path) -> Path:
    """Write the set beside the weights that it belongs to."""
    arrays = {
        "activations": (kept.activations / kept.scale).round().astype(np.uint8),
        "scale": kept.scale,
        "classes": kept.classes.astype(np.uint8),
        "held": kept.held.astype(np.uint8),
        "before": kept.before.astype(np.float16),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    save_tensors(rehearsal_path(weights), tensors, {"before the last layer": kept.of})
    return rehearsal_path(weights)
