"""People's own labelled pictures, learned on top of the weights that are served, in minutes.

Every step is held near the weights that it began with, so that classes without pictures of their own stay
what they were, and a fifth of the pictures is kept apart to show what changed.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.runtime import manifest
from gourmet.tasks import evaluation_file
from gourmet.tasks.classification.calibration import calibration_of
from gourmet.tasks.classification.labelled_pictures import decode
from gourmet.tasks.classification.picture_training import PictureTask, PictureTraining, phase
from gourmet.tasks.system_parts import BadData, Load
from gourmet.training.files import deployed_tensors, save_tensors
from gourmet.training.task import Phase, Recipe, Tick

LEAST: Final = 8
_BATCH: Final = 16
# How strongly the weights are held: a move by a tenth of their size costs as much as a loss of 0.2.
_HOLD: Final = 20.0


class MoreTask(PictureTask):
    """Classes alone are taught, and the weights held near those that it begins with."""

    def __init__(self, system: PictureClassifier, network: nn.Module, *more: Any) -> None:
        super().__init__(system, network, *more)
        self.begun = copy.deepcopy(self.network).eval().requires_grad_(False)
        self._weights = list(zip(self.network.parameters(), self.begun.parameters(), strict=True))

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        moved = sum((mine - was).square().sum() for mine, was in self._weights)
        size = sum(was.square().sum().item() for _, was in self._weights)
        return super().loss(examples, phase, generator) + _HOLD * moved / size

    def adapt(self, network: nn.Module) -> None:
        """Leave the statistics as they are: those of so few pictures would say little of others."""

    def changes(self, network: nn.Module) -> list[dict[str, Any]]:
        """By class, how many of its pictures kept apart were right before, and are now."""
        before, now = (self.served(each).argmax(dim=1) == self.held_classes for each in (self.begun, network))
        return [
            {
                "label": self.system.labels[class_id],
                "pictures": int((self.held_classes == class_id).sum()),
                "before": int(before[self.held_classes == class_id].sum()),
                "now": int(now[self.held_classes == class_id].sum()),
            }
            for class_id in sorted(set(self.held_classes.tolist()))
        ]


def prepare(training: PictureTraining, load: Load, folder: Path, weights: Path, tick: Tick) -> MoreTask:
    """Read the pictures of `folder`, a fifth of them kept apart, and begin with `weights`."""
    listing = training.data.listing
    kept = listing(folder, "test")
    apart = set(kept)
    learned = [each for each in listing(folder, "all") if each not in apart]
    if len(learned) < LEAST:
        raise BadData(f"{folder} has {len(learned)} pictures to learn from: at least {LEAST} are needed")
    pixels = decode((learned, kept), training.system.input_size, tick)
    return MoreTask(training.system, *load(weights, ""), *pixels)


def recipe(training: PictureTraining, epochs: int, rate: float, seed: int) -> Recipe:
    """Pictures of the size with which the system's own training ends."""
    last = training.recipe(epochs=1, rate=None, seed=0, device="cpu", pretrained=False).phases[-1]
    return Recipe(epochs, (phase(0.0, last.size, _BATCH),), rate, warmup=0.1, ema_decay=0.95, seed=seed)


def served_weights(version: Path, out: Path) -> Path:
    """The weights of a served version, written into the folder of the run that begins with them."""
    path = version / "model.pt"
    if not path.exists():
        raise UsageError(f"{version} has no model.pt, which `gourmet deploy` leaves there, to begin with")
    weights = out / "served.safetensors"
    save_tensors(weights, deployed_tensors(path, version.parents[1]), {})
    return weights


def keep_calibration(weights: Path, version: Path, changes: list[dict[str, Any]]) -> None:
    """What was chosen for the served version holds for weights that stay near its own.

    So few pictures could not tell a better temperature.
    """
    found = calibration_of(manifest.read(version).get("calibration", {}), version / manifest.MANIFEST)
    accuracy = {"learned more": changes}
    evaluation_file.write(weights, calibration=vars(found), accuracy=accuracy)
