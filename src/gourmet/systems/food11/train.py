"""Teach the food network: half for the dish, half for the class, and a part of it what is no food."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gourmet.pictures import made_up
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.network import INNER_SIZE, Food11Network, body, start
from gourmet.tasks.classification import rehearsal
from gourmet.tasks.classification.labelled_pictures import OTHER_TRAIN, Pixels, decode
from gourmet.tasks.classification.picture_training import (
    SMOOTHING,
    PictureTask,
    PictureTraining,
    phase,
)
from gourmet.training.task import Phase, Recipe, Tick, Training

# How long on two cores: see docs/training/food11.
_EPOCHS: Final = 6
_RATE: Final = 0.004
# Of the examples, the share that shows no food; half of it made up.
_OTHER_SHARE: Final = 0.1
_MADE_UP: Final = 3000
# How far back to the weights that it began with the body is taken at the end: photos of 64 pixels made it
# forget some of what it knew of sharp ones (Wortsman et al., Robust fine-tuning of zero-shot models, 2022).
_BACK: Final = 0.15


@dataclass(frozen=True)
class Food11Training(PictureTraining):
    """A classifier of pictures that is taught dishes as well, and what is none."""

    def recipe(
        self, *, epochs: int | None, rate: float | None, seed: int, device: str, pretrained: bool
    ) -> Recipe:
        """Fine-tuning: pictures that grow to the size at which the network looks at them."""
        steps = [(0.0, 96, 96), (0.35, 128, 96), (0.7, INNER_SIZE, 96)]
        phases = tuple(phase(start, width, batch) for start, width, batch in steps)
        return Recipe(epochs or _EPOCHS, phases, rate or _RATE, warmup=0.05, ema_decay=0.995, seed=seed)

    def prepare(
        self, data: Path, *, limit: int | None, seed: int, device: str, pretrained: bool, tick: Tick
    ) -> PictureTask:
        task = super().prepare(data, limit=limit, seed=seed, device=device, pretrained=pretrained, tick=tick)
        assert isinstance(task, Food11Task)
        side = task.images.shape[1]
        (real,) = decode([self.data.listing(data, OTHER_TRAIN, limit)], side)
        task.others = torch.from_numpy(np.concatenate([made_up.squares(_MADE_UP, seed, side), real.images]))
        return task

    def task(self, train: Pixels, held: Pixels, device: str, *, pretrained: bool) -> PictureTask:
        return Food11Task(train, held, device)

    def rehearse(self, network: nn.Module, data: Path, weights: Path, tick: Tick) -> Path:
        return rehearsal.write(rehearsal.make(self.system, self.data, network, data, tick), weights)


class Food11Task(PictureTask):
    network: Food11Network
    others: torch.Tensor  # uint8 [N, side, side, 3]: what is no food

    def __init__(self, train: Pixels, held: Pixels, device: str = "cpu") -> None:
        dishes = [f"{photo.class_id:02d}/{photo.variety}" for photo in train.photos]
        names = sorted(set(dishes))
        network = Food11Network(names, [int(name[:2]) for name in names], pretrained=True)
        super().__init__(SYSTEM, network, network.about, train, held, device)
        self.targets = torch.tensor([names.index(dish) for dish in dishes])

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        """The dish teaches more, the class is what is served."""
        foods = len(examples)
        drawn = torch.randint(len(self.others), (round(_OTHER_SHARE * foods),), generator=generator)
        photos = torch.cat([self.images[examples.to(self.device)], self.others[drawn].to(self.device)])
        logits = self.answers(self.network.logits, photos, phase, generator)
        other = torch.full((len(drawn),), len(self.network.dishes))
        targets = torch.cat([self.targets[examples], other]).to(self.device)
        of_class = self.classes[examples].to(self.device)
        return 0.5 * F.cross_entropy(logits, targets, label_smoothing=SMOOTHING) + 0.5 * F.cross_entropy(
            self.network.to_classes(logits[:foods]), of_class, label_smoothing=SMOOTHING
        )

    @torch.no_grad()
    def kept(self, network: nn.Module) -> nn.Module:
        mixed = copy.deepcopy(network)
        assert isinstance(mixed, Food11Network)
        begun = body()
        start(begun)
        for mine, was in zip(mixed.features.parameters(), begun.parameters(), strict=True):
            mine.lerp_(was.to(mine.device), _BACK)
        return mixed


TRAINING: Final[Training] = Food11Training(SYSTEM, DATA)
