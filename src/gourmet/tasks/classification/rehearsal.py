"""What a network makes of photos that it was trained on, kept beside its weights to learn and to compare.

The photos themselves cannot be shipped. Activations before the last layer, in eight bits, are enough to train
that layer without its forgetting what it knew, and to tell whether it did: some are held out for that, with
what the network answered when the set was made. The layers before must stay as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from gourmet.deploying.target import Check
from gourmet.errors import GourmetError
from gourmet.pictures import made_up
from gourmet.pictures.classifier import PictureClassifier, relevance
from gourmet.pictures.label_folders import OTHER
from gourmet.tasks.classification import augment
from gourmet.tasks.classification.calibration import Calibration
from gourmet.tasks.classification.evaluation import Answered, shares
from gourmet.tasks.classification.labelled_pictures import (
    OTHER_TRAIN,
    LabelledPictures,
    decode,
)
from gourmet.tasks.system_parts import BadData, evenly
from gourmet.training.files import load_tensors, save_tensors
from gourmet.training.task import Tick

# Of each class; of what is none of them, as many for a class again, half of them made up.
LEARNED: Final = 250
HELD: Final = 120
# More than so many points lost anywhere, and the gate refuses the network.
MARGIN: Final = 0.02
_SUFFIX: Final = ".rehearsal.safetensors"
_AT_ONCE: Final = 64


def beside(weights: Path) -> Path:
    """Where the set of these weights lies, if they have one."""
    return weights.with_suffix(_SUFFIX)


def take_over(weights: Path, exported: Path) -> None:
    """Put the set of `weights` beside the file that they are `exported` to, in place of another's."""
    beside(exported).unlink(missing_ok=True)
    if beside(weights).exists():
        shutil.copyfile(beside(weights), beside(exported))


class LastLayer(nn.Module):
    """The last layer of a network, apart from it: activations [N, …] -> what it says of each class."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._network = [network]  # in a list, so that its layers are not parts of this module
        self.last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(activations)
        return logits

    @property
    def strengths(self) -> torch.Tensor | None:
        """How freely the layer may use each of its inputs, where the network says so."""
        found: torch.Tensor | None = getattr(self._network[0], "strengths", None)
        return found

    @torch.no_grad()
    def activations(self, images: torch.Tensor) -> torch.Tensor:
        """What reaches the last layer of pictures as they are served."""
        found: list[torch.Tensor] = []
        hook = self.last.register_forward_pre_hook(lambda _layer, given: found.append(given[0]))
        try:
            self._network[0](images)
        finally:
            hook.remove()
        return found[0]

    @property
    def before_it(self) -> str:
        """A digest of all weights but its own."""
        digest, own = hashlib.sha256(), {id(each) for each in self.last.parameters()}
        for name, tensor in self._network[0].named_parameters():
            if id(tensor) not in own:
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Rehearsal:
    """Rows of activations, each with its class: as many as there are labels for none of them."""

    activations: torch.Tensor  # [rows, width]
    classes: torch.Tensor
    held: torch.Tensor  # kept apart, to compare by
    before: torch.Tensor  # [rows, labels]: the logits of the network that was trained on the photos
    scale: torch.Tensor  # [width]: what a step of the eight bits is
    of: str  # a digest of the layers before the last

    @property
    def to_learn(self) -> torch.Tensor:
        return self.activations[~self.held]

    def check(self, last: LastLayer) -> None:
        """Raise ValueError or RuntimeError unless the rows fit each other and the layer."""
        with torch.no_grad():
            rows, labels = last(self.activations).shape
        sizes = {rows, len(self.classes), len(self.held), len(self.before)}
        if len(sizes) > 1 or self.before.shape[1] != labels or int(self.classes.max()) > labels:
            raise ValueError(f"{rows} rows of {labels} labels, and others do not fit them")

    def changes(self, last: LastLayer, calibration: Calibration, system: PictureClassifier) -> list[Check]:
        """What the held-out rows lose by another last layer, and whether that is within the margin."""
        with torch.no_grad():
            now = last(self.activations[self.held]).numpy()
        was, classes = self.before[self.held].numpy(), self.classes[self.held].numpy()
        measures = [
            shares(
                Answered(logits, classes, (), bytes, relevance(logits) if system.subject else None),
                calibration,
                system,
            )
            for logits in (was, now)
        ]
        return [
            Check(
                f"{what}, of {rows} kept",
                f"{100 * before:.1f} → {100 * after:.1f} %",
                f"{100 * MARGIN:.0f} points less",
                before - after <= MARGIN,
            )
            for (what, (before, rows)), (after, _) in zip(
                measures[0].items(), measures[1].values(), strict=True
            )
        ]


def make(
    system: PictureClassifier, data: LabelledPictures, network: nn.Module, photos: Path, tick: Tick
) -> Rehearsal:
    """The set of a network that was trained on these photos."""
    last, labels = LastLayer(network.cpu().eval()), len(system.labels)
    apart = list(data.listing(photos, "validation"))
    with contextlib.suppress(BadData):  # photos for training alone
        apart += data.listing(photos, "test")
    to_learn, held = data.listing(photos, "train", LEARNED * labels), evenly(apart, HELD * labels)
    drawn = np.empty((0, system.input_size, system.input_size, 3), np.uint8)
    if system.subject:
        to_learn = (*to_learn, *evenly(data.listing(photos, OTHER_TRAIN), LEARNED // 2))
        held = (*held, *(data.listing(photos, OTHER, HELD) if OTHER in data.parts(photos) else ()))
        drawn = made_up.squares(LEARNED // 2 + HELD, 0, system.input_size)
    listed = (*to_learn, *held)
    found = []
    for first in range(0, len(listed), _AT_ONCE):
        (pixels,) = decode([listed[first : first + _AT_ONCE]], system.input_size)
        found.append(last.activations(augment.served(torch.from_numpy(pixels.images), system)))
        tick((first + len(pixels.photos)) / len(listed))
    for some in torch.split(torch.from_numpy(drawn), _AT_ONCE):
        found.append(last.activations(augment.served(some, system)))
    activations = torch.cat(found)
    classes = torch.tensor([photo.class_id for photo in listed] + [labels] * len(drawn))
    is_held = torch.zeros(len(classes), dtype=torch.bool)
    is_held[len(to_learn) : len(listed)] = True
    is_held[len(listed) + LEARNED // 2 :] = True
    # As they are read again.
    scale = (activations.amax(dim=0) / 255).clamp_min(1e-9)
    activations = (activations / scale).round().clamp(0, 255) * scale
    with torch.no_grad():
        return Rehearsal(activations, classes, is_held, last(activations), scale, last.before_it)


def write(found: Rehearsal, weights: Path) -> Path:
    """Keep a set beside the weights that it is of."""
    tensors = {
        "activations": (found.activations / found.scale).round().to(torch.uint8),
        "scale": found.scale,
        "classes": found.classes.to(torch.uint8),
        "held": found.held.to(torch.uint8),
        "before": found.before.half(),
    }
    save_tensors(beside(weights), tensors, {"before the last layer": found.of})
    return beside(weights)


def read(weights: Path, network: nn.Module) -> Rehearsal | None:
    """The set beside `weights`; None where there is none, or one of a network with other layers."""
    path = beside(weights)
    if not path.exists():
        return None
    tensors, about = load_tensors(path)
    last = LastLayer(network)
    if about.get("before the last layer") != last.before_it:
        return None
    try:
        scale = tensors["scale"].float()
        found = Rehearsal(
            tensors["activations"].float() * scale,
            tensors["classes"].long(),
            tensors["held"].bool(),
            tensors["before"].float(),
            scale,
            about["before the last layer"],
        )
        found.check(last)
    except (KeyError, RuntimeError, ValueError) as exc:
        raise GourmetError(
            f"{path} is not a rehearsal set: make it again with `gourmet train --rehearse`"
        ) from exc
    return found
