"""MobileNetV2 that tells dishes apart and answers in the eleven classes.

It is trained on dishes (a finer target teaches more per photo) and served in classes: a class's
probability is the sum of its dishes' probabilities, which a fixed last layer computes on the
logits. Data without dishes train the same network with one dish a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gourmet.systems.food11 import contract
from gourmet.tasks.classification import torchvision_network
from gourmet.training.files import check_about, load_tensors, put_tensors

ARCHITECTURE = "mobilenet_v2 1.0"
_BACKBONE = "torchvision:mobilenet_v2"


class Food11Network(nn.Module):
    """float [N, 3, 224, 224] -> logits [N, 11] whose softmax are the class probabilities."""

    groups: torch.Tensor

    def __init__(
        self, dishes: Sequence[str], dish_classes: Sequence[int], *, pretrained: bool = False
    ) -> None:
        super().__init__()
        self.dishes = tuple(dishes)
        self.dish_classes = tuple(dish_classes)
        self.backbone = torchvision_network.build(_BACKBONE, len(self.dishes), pretrained=pretrained)
        groups = torch.zeros(len(self.dishes), len(contract.SYSTEM.labels))
        groups[torch.arange(len(self.dishes)), torch.tensor(self.dish_classes)] = 1.0
        self.register_buffer("groups", groups)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.to_classes(self.backbone(images))

    def to_classes(self, dish_logits: torch.Tensor) -> torch.Tensor:
        """log(sum(exp)) of each class's dishes, as a product with a table of zeros and ones."""
        top = dish_logits.amax(dim=1, keepdim=True)
        sums = torch.exp(dish_logits - top) @ self.groups
        return torch.log(sums.clamp_min(1e-30)) + top

    @property
    def about(self) -> dict[str, Any]:
        """What a file of these weights says about itself."""
        return {
            **torchvision_network.describe(contract.SYSTEM, ARCHITECTURE),
            "dishes": list(self.dishes),
            "dish_classes": list(self.dish_classes),
        }


def load(path: Path, architecture: str = "", /) -> tuple[nn.Module, dict[str, Any]]:
    """The network in `path`, ready to answer, and what is known of it.

    With an `architecture`, it is a network of torchvision that answers in the classes itself.
    """
    if architecture not in ("", ARCHITECTURE):
        return torchvision_network.TorchvisionNetwork(contract.SYSTEM, architecture)(path)
    tensors, about = load_tensors(path)
    check_about(path, about, torchvision_network.describe(contract.SYSTEM, ARCHITECTURE))
    network = Food11Network(about["dishes"], about["dish_classes"])
    put_tensors(network, tensors, path)
    return network.eval(), about
