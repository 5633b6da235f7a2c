"""Teach the digits network: what it is shown, how it is measured on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gourmet.errors import UsageError
from gourmet.systems.datasets import check_classes
from gourmet.systems.digits import augment, contract
from gourmet.systems.digits.data import Digit, listing
from gourmet.systems.digits.network import DigitsNetwork
from gourmet.training.average import refresh_statistics
from gourmet.training.measuring import measures
from gourmet.training.recipe import Phase, Recipe

Tick = Callable[[float], None]

_EPOCHS: Final = 24
_RATE: Final = 0.02
_BATCH: Final = 64
_REFRESHED: Final = 512
_ROWS: Final = 256


def recipe(*, epochs: int | None, rate: float | None, seed: int, device: str, pretrained: bool) -> Recipe:
    """One size throughout. The epochs are for the bundled digits; of MNIST's 60,000, fewer will do."""
    if pretrained:
        raise UsageError("there are no pretrained weights for digits: train without --pretrained")
    return Recipe(epochs or _EPOCHS, (Phase(0.0, contract.INPUT_SIZE, _BATCH),), rate or _RATE, seed=seed)


def prepare(
    data: Path, *, limit: int | None, seed: int, device: str, pretrained: bool, tick: Tick
) -> DigitsTrainee:
    """Read the digits and build the network for them, its first weights drawn with `seed`."""
    train = listing(data, "train", limit)
    tick(1.0)
    check_classes(data, (digit.class_id for digit in train), contract.LABELS)
    held = listing(data, "validation", limit and max(limit // 5, len(contract.LABELS)))
    torch.manual_seed(seed)
    return DigitsTrainee(train, held, torch.device(device))


def _tensors(digits: tuple[Digit, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    images = contract.normalise(np.stack([digit.image for digit in digits]))
    return torch.from_numpy(images), torch.tensor([digit.class_id for digit in digits])


class DigitsTrainee:
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

    def loss(self, examples: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
        examples = examples.to(self.device)
        logits = self.network(augment.varied(self.images[examples], generator))
        return F.cross_entropy(logits, self.classes[examples])

    @torch.no_grad()
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Loss and balanced accuracy on digits held out, as they are served."""
        refresh_statistics(network, torch.split(self.images[:_REFRESHED], _ROWS))
        logits = [network(rows.to(self.device)).cpu() for rows in torch.split(self.held_images, _ROWS)]
        return measures(torch.cat(logits), self.held_classes)
