"""People's own labelled pictures, learned on top of the weights that are served, in seconds.

Only the last layer learns: it is solved (gourmet.tasks.classification.linear_layer) for the new pictures and
for activations of those that the network was trained on (gourmet.tasks.classification.rehearsal), to which it
goes on answering as it did. A fifth of the pictures is kept apart to show what changed.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
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
from gourmet.tasks.classification.linear_layer import evenly_counted, one_hot, solve
from gourmet.tasks.classification.picture_training import PictureTraining
from gourmet.tasks.classification.rehearsal import LastLayer, Rehearsal
from gourmet.tasks.system_parts import BadData, EmptyPart, Load
from gourmet.training.files import deployed_tensors, save_tensors
from gourmet.training.task import Tick

LEAST: Final = 8
# Fewer kept apart do not show whether anything was learned.
TELLING: Final = 10
SERVED: Final = "model.pt"
_BATCH: Final = 64
_VIEWS: Final = 4  # of each picture
# What the new pictures count; the rest is what was known.
_NEW: Final = 0.1
# How strongly the layer is held to what it is.
_PULL: Final = 0.001
# How far to go, where the whole way loses too much.
_WAY: Final = (1.0, 0.7, 0.5, 0.35, 0.25)


class MoreLearning:
    """A network whose last layer learns new pictures, beside what it is to go on knowing."""

    def __init__(
        self, system: PictureClassifier, whole: nn.Module, known: Rehearsal, learned: Pixels, kept: Pixels
    ) -> None:
        self.system, self.whole, self.known, self.last = system, whole, known, LastLayer(whole)
        images = torch.from_numpy(learned.images)
        random, size = torch.Generator().manual_seed(0), system.input_size
        views = [augment.varied(images, size, random, system) for _ in range(_VIEWS - 1)]
        views = [augment.served(images, system), *views]
        self.new = torch.cat([_activations(self.last, view) for view in views])
        self.classes = torch.from_numpy(np.tile(learned.classes, _VIEWS))
        self.held = _activations(self.last, augment.served(torch.from_numpy(kept.images), system))
        self.held_classes = torch.from_numpy(kept.classes)
        self.begun = copy.deepcopy(self.last)

    def solve(self, layer: nn.Linear) -> None:
        """Fit `layer` to the new pictures and to what the network says of those that are rehearsed."""
        old, kinds = self.known.to_learn, len(self.system.labels) + bool(self.system.subject)
        with torch.no_grad():
            targets = torch.softmax(self._with_none(self.begun(old)), dim=1)
        counts = evenly_counted(self.classes, kinds)
        solve(
            layer,
            torch.cat([self.new, old]),
            torch.cat([one_hot(self.classes, kinds), targets]),
            torch.cat([_NEW * counts / counts.sum(), torch.full((len(old),), (1 - _NEW) / len(old))]),
            pull=_PULL,
            strengths=self.last.strengths,
        )

    def _with_none(self, logits: torch.Tensor) -> torch.Tensor:
        """A last column for none of the classes: their level is against zero that they are shown at all."""
        return F.pad(logits, (0, 1)) if self.system.subject else logits

    def finish(
        self, weights: Path, about: dict[str, Any], calibration: Calibration
    ) -> tuple[list[Check], list[dict[str, Any]]]:
        """Write the whole network to `weights`, taken towards the solution as far as nothing is lost.

        Returns what it loses of what is rehearsed, and by class what it knows now.
        """
        solved = copy.deepcopy(self.begun.last)
        self.solve(solved)
        for way in _WAY:
            with torch.no_grad():
                for own, begun, new in zip(
                    self.last.last.parameters(),
                    self.begun.last.parameters(),
                    solved.parameters(),
                    strict=True,
                ):
                    own.copy_(torch.lerp(begun, new, way))
            checks = self.known.changes(self.last, calibration, self.system)
            if all(check.passed for check in checks):
                break
        save_tensors(weights, self.whole.state_dict(), {**about, "way": way})
        rehearsal.write(self.known, weights)
        return checks, self._by_class(calibration)

    def _by_class(self, calibration: Calibration) -> list[dict[str, Any]]:
        """How many of the pictures kept apart were right before, and are now."""
        with torch.no_grad():
            before, now = (self._right(each(self.held), calibration) for each in (self.begun, self.last))
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
        declined = torch.from_numpy(relevance(logits.numpy()) < calibration.subject_threshold)
        return torch.where(self.held_classes == none, declined, logits.argmax(dim=1) == self.held_classes)


def _activations(last: LastLayer, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([last.activations(some) for some in torch.split(images, _BATCH)])


def prepare(
    training: PictureTraining, load: Load, folder: Path, weights: Path, tick: Tick
) -> tuple[MoreLearning, dict[str, Any]]:
    """Read the pictures of `folder`, a fifth of them kept apart, and begin with `weights`.

    Returns what the weights say about themselves, too.
    """
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
    about = {**about, "examples": len(learned)}
    return MoreLearning(training.system, network, known, *pixels), about


def served_weights(version: Path, out: Path, about: dict[str, Any] | None = None) -> Path:
    """The weights of a served version, written into the folder of the run that begins with them."""
    path = version / SERVED
    if not path.exists():
        raise UsageError(f"{version} has no {SERVED}, which `gourmet deploy` leaves there, to begin with")
    weights = out / "served.safetensors"
    save_tensors(weights, deployed_tensors(path, version.parents[1]), about or {})
    if (known := rehearsal.beside(path)).exists():
        shutil.copyfile(known, rehearsal.beside(weights))
    return weights


def served_calibration(version: Path) -> Calibration:
    """What was chosen for the served version, and holds for weights that stay near its own.

    So few pictures could not tell a better temperature.
    """
    return calibration_of(manifest.read(version).get("calibration", {}), version / manifest.MANIFEST)
