"""Teach the food network: half for the dish, half for the class."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.network import Food11Network
from gourmet.tasks.classification.labelled_pictures import Pixels
from gourmet.tasks.classification.picture_training import PictureTask, PictureTraining
from gourmet.training.task import Phase, Training


class Food11Training(PictureTraining):
    """A classifier of pictures that is taught dishes as well."""

    def task(self, train: Pixels, held: Pixels, device: torch.device, *, pretrained: bool) -> Food11Task:
        return Food11Task(train, held, device, pretrained=pretrained)


class Food11Task(PictureTask):
    network: Food11Network

    def __init__(self, train: Pixels, held: Pixels, device: torch.device, *, pretrained: bool) -> None:
        dishes = sorted({(photo.class_id, photo.variety) for photo in train.photos})
        names, classes = [f"{c:02d}/{name}" for c, name in dishes], [c for c, _ in dishes]
        network = Food11Network(names, classes, pretrained=pretrained)
        super().__init__(SYSTEM, network, network.about, train, held, device)
        number = {dish: place for place, dish in enumerate(dishes)}
        self.targets = torch.tensor([number[photo.class_id, photo.variety] for photo in train.photos])

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        """The dish teaches more, the class is what is served."""
        dish_logits = self.answers(self.network.backbone, examples, phase, generator)
        dish = F.cross_entropy(dish_logits, self.targets[examples].to(self.device), label_smoothing=0.05)
        of_class = self.classes[examples].to(self.device)
        return 0.5 * dish + 0.5 * F.cross_entropy(
            self.network.to_classes(dish_logits), of_class, label_smoothing=0.05
        )


TRAINING: Final[Training] = Food11Training(SYSTEM, DATA)
