"""People's own labelled pictures, learned on top of the weights that are served, in seconds.

Only the last layer learns. It sees the new pictures and, each time, activations of those that the network was
trained on (gourmet.tasks.classification.rehearsal), to which it goes on answering as it did. A fifth of the
pictures is kept apart to show what changed.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gourmet.deploying.target import Check
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier, relevance
from gourmet.pictures.label_folders import OTHER
from gourmet.runtime import manifest
from gourmet.tasks.classification import augment, rehearsal
from gourmet.tasks.classification.calibration import Calibration, calibration_of
from gourmet.tasks.classification.labelled_pictures import ALL, OTHER_TRAIN, Pixels, decode
from gourmet.tasks.classification.picture_training import PictureTask, PictureTraining, phase
from gourmet.tasks.classification.rehearsal import LastLayer, Rehearsal
from gourmet.tasks.system_parts import BadData, EmptyPart, Load
from gourmet.training.files import deployed_tensors, load_tensors, save_tensors
from gourmet.training.task import Phase, Recipe, Tick

LEAST: Final = 8
# Fewer kept apart do not show whether anything was learned.
TELLING: Final = 10
SERVED: Final = "model.pt"
# Where the run of the layer lies, in the folder of the whole network.
LAYER: Final = "last-layer"
_BATCH: Final = 64
_REHEARSED: Final = 256
_STEPS: Final = 16  # an epoch, at least
_VIEWS: Final = 4  # of each picture
# What the new pictures count; the rest is what was known.
_NEW: Final = 0.1
# How far to go, where the whole way loses too much.
_WAY: Final = (1.0, 0.7, 0.5, 0.35, 0.25)


class MoreTask(PictureTask):
    """The last layer and what reaches it: of new pictures, and of those that are rehearsed."""

    def __init__(
        self, system: PictureClassifier, whole: nn.Module, known: Rehearsal, learned: Pixels, kept: Pixels
    ) -> None:
        last, images = LastLayer(whole), torch.from_numpy(learned.images)
        random, size = torch.Generator().manual_seed(0), system.input_size
        views = [augment.varied(images, size, random, system) for _ in range(_VIEWS - 1)]
        new = [_activations(last, view) for view in [augment.served(images, system), *views]]
        held = _activations(last, augment.served(torch.from_numpy(kept.images), system))
        rows = Pixels((), torch.cat(new).numpy(), np.tile(learned.classes, _VIEWS))
        super().__init__(system, last, {}, rows, replace(kept, images=held.numpy()))
        self.whole, self.known, self.last, self.begun = whole, known, last, copy.deepcopy(last)

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """Every class equally often, and all of it again where there are few pictures."""
        orders = [super().order(generator)]
        while sum(map(len, orders)) < _STEPS * _BATCH:
            orders.append(super().order(generator))
        return torch.cat(orders)

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        """The new classes are taught, and what is rehearsed is answered as it was."""
        logits = self._with_none(self.network(self.images[examples]))
        new = F.cross_entropy(logits, self.classes[examples], label_smoothing=self.smoothing)
        old = self.known.to_learn
        rehearsed = old[torch.randint(len(old), (_REHEARSED,), generator=generator)]
        with torch.no_grad():
            was = F.log_softmax(self.begun.last(rehearsed), dim=1)
        now = F.log_softmax(self.last.last(rehearsed), dim=1)
        return _NEW * new + (1 - _NEW) * F.kl_div(now, was, reduction="batchmean", log_target=True)

    def _with_none(self, logits: torch.Tensor) -> torch.Tensor:
        """A last column for none of the classes: their level is against zero that they are shown at all."""
        return F.pad(logits, (0, 1)) if self.system.subject else logits

    def adapt(self, network: nn.Module) -> None:
        """The layers before have no statistics to take again."""

    def served(self, network: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return self._with_none(network(self.held_images))

    def finish(
        self, layer: Path, weights: Path, calibration: Calibration
    ) -> tuple[list[Check], list[dict[str, Any]]]:
        """Write the whole network to `weights`, taken towards the `layer` as far as nothing is lost.

        Returns what it loses of what is rehearsed, and by class what it knows now.
        """
        tensors, about = load_tensors(layer)
        for way in _WAY:
            with torch.no_grad():
                for name, own in self.last.named_parameters():
                    own.copy_(torch.lerp(self.begun.get_parameter(name), tensors[name], way))
            checks = self.known.changes(self.last, calibration, self.system)
            if all(check.passed for check in checks):
                break
        save_tensors(weights, self.whole.state_dict(), {**about, "way": way})
        rehearsal.write(self.known, weights)
        return checks, self._by_class(calibration)

    def _by_class(self, calibration: Calibration) -> list[dict[str, Any]]:
        """How many of the pictures kept apart were right before, and are now."""
        before, now = (self._right(self.served(each), calibration) for each in (self.begun, self.last))
        labels = (*self.system.labels, f"no {self.system.subject}")
        return [
            {
                "label": labels[class_id],
                "pictures": int((self.held_classes == class_id).sum()),
                "before": int(before[self.held_classes == class_id].sum()),
                "now": int(now[self.held_classes == class_id].sum()),
            }
            for class_id in sorted(set(self.held_classes.tolist()))
        ]

    def _right(self, logits: torch.Tensor, calibration: Calibration) -> torch.Tensor:
        """Of the pictures kept apart; one of no class is right where it is declined."""
        none = len(self.system.labels)
        logits = logits[:, :none]
        declined = torch.from_numpy(relevance(logits.numpy()) < calibration.subject_threshold)
        return torch.where(self.held_classes == none, declined, logits.argmax(dim=1) == self.held_classes)


def _activations(last: LastLayer, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([last.activations(some) for some in torch.split(images, _BATCH)])


def prepare(training: PictureTraining, load: Load, folder: Path, weights: Path, tick: Tick) -> MoreTask:
    """Read the pictures of `folder`, a fifth of them kept apart, and begin with `weights`."""
    listing = training.data.listing
    kept = listing(folder, "test")
    apart = set(kept)
    learned = [each for each in listing(folder, ALL) if each not in apart]
    if training.system.subject and OTHER in training.data.parts(folder):
        learned += listing(folder, OTHER_TRAIN)
        with contextlib.suppress(EmptyPart):  # of a few pictures, none may be held out
            kept += listing(folder, OTHER)
    if len(learned) < LEAST:
        raise BadData(f"{folder} has {len(learned)} pictures to learn from: at least {LEAST} are needed")
    network, about = load(weights, "")
    if (known := rehearsal.read(weights, network)) is None:
        raise UsageError(
            f"no rehearsal set found for what is served, without which it would forget what it knows: make "
            f"one with `gourmet train {training.system.name} --rehearse WEIGHTS --data PHOTOS`, from the "
            f"{SERVED} that is served and photos like those that it was trained on"
        )
    pixels = decode((learned, kept), training.system.input_size, tick)
    task = MoreTask(training.system, network, known, *pixels)
    task.about = {**about, "examples": len(learned)}
    return task


def recipe(training: PictureTraining, epochs: int, rate: float, seed: int) -> Recipe:
    """Few steps, since activations change little and there are few of them."""
    size = training.system.input_size
    return Recipe(epochs, (phase(0.0, size, _BATCH),), rate, warmup=0.1, ema_decay=0.95, seed=seed)


def served_weights(version: Path, out: Path) -> Path:
    """The weights of a served version, written into the folder of the run that begins with them."""
    path = version / SERVED
    if not path.exists():
        raise UsageError(f"{version} has no {SERVED}, which `gourmet deploy` leaves there, to begin with")
    weights = out / "served.safetensors"
    save_tensors(weights, deployed_tensors(path, version.parents[1]), {})
    if (known := rehearsal.beside(path)).exists():
        shutil.copyfile(known, rehearsal.beside(weights))
    return weights


def served_calibration(version: Path) -> Calibration:
    """What was chosen for the served version, and holds for weights that stay near its own.

    So few pictures could not tell a better temperature.
    """
    return calibration_of(manifest.read(version).get("calibration", {}), version / manifest.MANIFEST)
