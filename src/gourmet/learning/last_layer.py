"""The last layer of a network that torch holds, apart from it, and the set that is kept to rehearse."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from gourmet.evaluation.labelled_pictures import OTHER_TRAIN, LabelledPictures, decode
from gourmet.evaluation.system_parts import BadData, sample_per_class
from gourmet.learning import augment
from gourmet.pictures import made_up
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.label_folders import OTHER
from gourmet.progress import ReportProgress
from gourmet.training.linear_layer import Floats, Layer
from gourmet.training.rehearsal import Rehearsal

# Pictures of each class, and as many of none, half of which are made up.
LEARNED: Final = 250
HELD: Final = 120
_AT_ONCE: Final = 64


class LastLayer:
    """The last layer of a network: activations [N, …] -> a score for each class."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]

    @property
    def layer(self) -> Layer:
        """Return the last layer's numbers, apart from the network."""
        return Layer(self.last.weight.detach().numpy().copy(), self.last.bias.detach().numpy().copy())

    @torch.no_grad()
    def take(self, layer: Layer) -> None:
        """Put the numbers of `layer` into the network."""
        self.last.weight.copy_(torch.from_numpy(layer.weight))
        self.last.bias.copy_(torch.from_numpy(layer.bias))

    @torch.no_grad()
    def activations(self, images: torch.Tensor) -> Floats:
        """Return the last layer's inputs for pictures as they are served."""
        rows: list[Floats] = []
        hook = self.last.register_forward_pre_hook(lambda _layer, inputs: rows.append(inputs[0].numpy()))
        try:
            self._network(images)
        finally:
            hook.remove()
        return rows[0]

    @property
    def before_it(self) -> str:
        """Return a digest of all weights before the last layer."""
        digest, own = hashlib.sha256(), {id(parameter) for parameter in self.last.parameters()}
        for name, tensor in self._network.named_parameters():
            if id(tensor) not in own:
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def make(
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
