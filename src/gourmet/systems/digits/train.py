"""Teach the digits network: what it is shown, how it is measured on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn

from gourmet.errors import UsageError
from gourmet.systems.digits import augment, contract
from gourmet.systems.digits.data import DATA, Digit, bundled
from gourmet.systems.digits.network import DigitsNetwork
from gourmet.tasks.classification.picture_training import measures
from gourmet.tasks.datasets import check_classes
from gourmet.training.recipe import Phase, Recipe
from gourmet.training.task import Tick, Training

_EPOCHS: Final = 24
_RATE: Final = 0.02
_BATCH: Final = 64
_REFRESHED: Final = 512
_ROWS: Final = 256


class DigitsTraining:
    """Fulfils `gourmet.training.task.Training`."""

    def recipe(
        self, *, epochs: int | None, rate: float | None, seed: int, device: str, pretrained: bool
    ) -> Recipe:
        """One phase. The epochs are for the bundled digits; of MNIST's 60,000, fewer will do."""
        if pretrained:
            raise UsageError("there are no pretrained weights for digits: train without --pretrained")
        return Recipe(epochs or _EPOCHS, (Phase(0.0, _BATCH),), rate or _RATE, seed=seed)

    def prepare(
        self, data: Path, *, limit: int | None, seed: int, device: str, pretrained: bool, tick: Tick
    ) -> DigitsTask:
        train = DATA.listing(data, "train", limit)
        tick(1.0)
        check_classes(data, (digit.class_id for digit in train), contract.SYSTEM.labels)
        held = DATA.listing(data, "validation", limit and max(limit // 5, len(contract.SYSTEM.labels)))
        torch.manual_seed(seed)
        return DigitsTask(train, held, torch.device(device))

    def bundled_data(self) -> tuple[Path, str]:
        return bundled()


def _tensors(digits: tuple[Digit, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    images = contract.SYSTEM.normalise(np.stack([digit.image for digit in digits]))
    return torch.from_numpy(images), torch.tensor([digit.class_id for digit in digits])


class DigitsTask:
    """The network and its digits, as the training engine wants them."""

    def __init__(self, train: tuple[Digit, ...], held: tuple[Digit, ...], device: torch.device) -> None:
        network = DigitsNetwork().to(device)
        self.about: dict[str, Any] = {**network.about, "examples": len(train)}
        self.network: nn.Module = network
        self.device = device
        self.images, self.classes = (tensor.to(device) for tensor in _tensors(train))
        self.held_images, self.held_classes = _tensors(held)

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """Every digit once."""
        return torch.randperm(len(self.images), generator=generator)

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        examples = examples.to(self.device)
        logits = self.network(augment.varied(self.images[examples], generator))
        return F.cross_entropy(logits, self.classes[examples])

    @torch.no_grad()
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Loss and balanced accuracy on digits held out, as they are served."""
        update_bn(torch.split(self.images[:_REFRESHED], _ROWS), network)
        logits = [network(rows.to(self.device)).cpu() for rows in torch.split(self.held_images, _ROWS)]
        return measures(torch.cat(logits), self.held_classes)


TRAINING: Final[Training] = DigitsTraining()
