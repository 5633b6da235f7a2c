"""Make the rehearsal set of a network (gourmet.evaluation.rehearsal) from photos that it was trained on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from gourmet.evaluation.labelled_pictures import OTHER_TRAIN, LabelledPictures, decode
from gourmet.evaluation.rehearsal import Rehearsal
from gourmet.evaluation.system_parts import BadData, sample_per_class
from gourmet.learning import augment
from gourmet.pictures import made_up
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.label_folders import OTHER
from gourmet.progress import ReportProgress
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
    return Rehearsal.rounded(activations, classes, is_held, last.layer, last.before_it)
