"""Teach the food network: what it is shown, what it answers for, how it is measured on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from gourmet.systems.food11 import augment, contract
from gourmet.systems.food11.contract import LABELS
from gourmet.systems.food11.data import Pixels, decode, dishes, listing, natural_side
from gourmet.systems.food11.network import Food11Network
from gourmet.training.average import refresh_statistics
from gourmet.training.measuring import measures
from gourmet.training.recipe import Phase, Recipe

Tick = Callable[[float], None]

# Photos a class on which the average is measured after every epoch, at the serving size.
_MEASURED_PER_CLASS: Final = 30
_REFRESHED: Final = 160
_ROWS: Final = 64  # at the serving size


# On two idle cores, which train on 400 photos of 64 pixels a second, 16 epochs take about an hour.
_EPOCHS: Final = {"cpu": 16, "cuda": 60}
_RATE: Final = 0.02


def recipe(*, epochs: int | None, rate: float | None, seed: int, device: str, pretrained: bool) -> Recipe:
    """Small pictures first, where a photo is cheap, and the serving size at the end.

    On a CPU a photo of 64 pixels costs a twelfth of one of 224.
    """
    phases: tuple[Phase, ...]
    if device == "cpu":
        phases = (Phase(0.0, 64, 128), Phase(0.6, 96, 96), Phase(0.85, 128, 64), Phase(0.965, 224, 32))
    else:
        phases = (Phase(0.0, 128, 256), Phase(0.4, 176, 256), Phase(0.75, 224, 256))
    peak = rate or (_RATE / 5.0 if pretrained else _RATE)
    return Recipe(epochs or _EPOCHS[device], phases, peak, seed=seed)


def prepare(
    data: Path, *, limit: int | None, seed: int, device: str, pretrained: bool, tick: Tick
) -> Food11Trainee:
    """Read the photos and build the network for them, its first weights drawn with `seed`."""
    photos = listing(data, "train", limit)
    held = listing(data, "validation", limit and max(limit // 5, len(LABELS)))
    side = natural_side(photos)
    total = len(photos) + len(held)
    train = decode(photos, side, lambda done: tick(done / total))
    validation = decode(held, side, lambda done: tick((done + len(photos)) / total))
    torch.manual_seed(seed)
    return Food11Trainee(train, validation, torch.device(device), pretrained=pretrained)


def _spread(rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """At most _MEASURED_PER_CLASS of `rows`, from all over them: they are sorted by dish."""
    return rows[:: max(1, -(-len(rows) // _MEASURED_PER_CLASS))]


class Food11Trainee:
    """The network and its photos, as the training engine wants them."""

    def __init__(self, train: Pixels, validation: Pixels, device: torch.device, *, pretrained: bool) -> None:
        names, classes = dishes(train.photos)
        number = {name: i for i, name in enumerate(names)}
        network = Food11Network(names, classes, pretrained=pretrained).to(device)
        self.about: dict[str, Any] = {**network.about, "examples": len(train.photos)}
        self.network: nn.Module = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.images = torch.from_numpy(train.images).to(device)
        self.classes = torch.from_numpy(train.classes)
        self.targets = torch.tensor([number[f"{p.class_id:02d}/{p.dish}"] for p in train.photos])
        chosen = np.concatenate(
            [_spread(np.flatnonzero(validation.classes == c)) for c in range(len(LABELS))]
        )
        self.held_images = torch.from_numpy(validation.images[chosen])
        self.held_classes = torch.from_numpy(validation.classes[chosen])

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """As many photos as there are, every class equally often.

        A class with fewer photos than its share shows some of them again, one with more leaves some
        for the next epoch.
        """
        labels = len(LABELS)
        share = -(-len(self.classes) // labels)
        drawn = []
        for class_id in range(labels):
            mine = torch.nonzero(self.classes == class_id).view(-1)
            rounds = [
                mine[torch.randperm(len(mine), generator=generator)] for _ in range(-(-share // len(mine)))
            ]
            drawn.append(torch.cat(rounds)[:share])
        order = torch.cat(drawn)
        return order[torch.randperm(len(order), generator=generator)]

    def loss(self, examples: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
        """Half for the dish, half for the class: the one teaches more, the other is what is served."""
        network = self.network
        assert isinstance(network, Food11Network)
        images = augment.varied(self.images[examples.to(self.device)], size, generator)
        # On GPUs half precision is several times as fast; on CPUs bfloat16's depthwise filters are not.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            dish_logits = network.backbone(images)
        dish_logits = dish_logits.float()
        targets = self.targets[examples].to(self.device)
        dish = F.cross_entropy(dish_logits, targets, label_smoothing=0.05)
        of_class = self.classes[examples].to(self.device)
        return 0.5 * dish + 0.5 * F.cross_entropy(
            network.to_classes(dish_logits), of_class, label_smoothing=0.05
        )

    @torch.no_grad()
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Balanced top-1 on photos held out, as served: at the serving size, statistics taken there."""
        generator = torch.Generator().manual_seed(0)
        some = torch.randperm(len(self.images), generator=generator)[:_REFRESHED]
        refresh_statistics(
            network,
            (
                augment.varied(self.images[rows], contract.INPUT_SIZE, generator)
                for rows in torch.split(some, _ROWS)
            ),
        )
        logits = [
            network(augment.served(rows.to(self.device), contract.INPUT_SIZE)).cpu()
            for rows in torch.split(self.held_images, _ROWS)
        ]
        return measures(torch.cat(logits), self.held_classes)
