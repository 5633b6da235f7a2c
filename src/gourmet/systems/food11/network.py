"""MobileNetV1 that tells dishes apart and answers in the eleven classes, and whether it is food at all.

It is trained on dishes (a finer target teaches more per photo) and served in classes: a class's
probability is the sum of its dishes' probabilities, which a fixed last layer computes on the
logits. One more output stands for pictures of anything else. Data without dishes train the same
network with one dish a class.

Its body begins with weights that know 2,023 dishes: starting_weights.safetensors, whose origin stands
in NOTICE. They have their batch normalisation folded in, and are fine-tuned so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from gourmet.errors import GourmetError
from gourmet.runtime.manifest import sha256
from gourmet.systems.food11 import contract
from gourmet.tasks.classification import torchvision_network
from gourmet.training.files import check_about, load_tensors, put_tensors

ARCHITECTURE: Final = "mobilenet_v1 1.0"
# The network looks at pictures of this width, which cost half of what is sent to it: see MODEL_CARD.md.
INNER_SIZE: Final = 160
STARTING_WEIGHTS: Final = Path(__file__).with_name("starting_weights.safetensors")
_STARTING_SHA256: Final = "dad2a7621d4217a3e55e6331616a22468faadc0af2ebded64c46ef6f0e2d12db"
# Stride and outputs of each depthwise convolution with the pointwise one behind it.
_LAYERS: Final = (
    (1, 64),
    (2, 128),
    (1, 128),
    (2, 256),
    (1, 256),
    (2, 512),
    *[(1, 512)] * 5,
    (2, 1024),
    (1, 1024),
)
_FEATURES: Final = 1024


def body() -> nn.Sequential:
    """MobileNetV1 up to its last feature map, without batch normalisation."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU6()]
    inputs = 32
    for stride, outputs in _LAYERS:
        layers += [nn.Conv2d(inputs, inputs, 3, stride=stride, padding=1, groups=inputs), nn.ReLU6()]
        layers += [nn.Conv2d(inputs, outputs, 1), nn.ReLU6()]
        inputs = outputs
    return nn.Sequential(*layers)


class Food11Network(nn.Module):
    """float [N, 3, 224, 224] -> logits [N, 11] whose softmax are the class probabilities.

    Their level tells food from anything else: log(sum(exp)) is the logit of its being food.
    """

    groups: torch.Tensor

    def __init__(
        self, dishes: Sequence[str], dish_classes: Sequence[int], *, pretrained: bool = False
    ) -> None:
        super().__init__()
        self.dishes = tuple(dishes)
        self.dish_classes = tuple(dish_classes)
        self.features = body()
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(_FEATURES, len(self.dishes) + 1)
        if pretrained:
            start(self.features)
        groups = torch.zeros(len(self.dishes), len(contract.SYSTEM.labels))
        groups[torch.arange(len(self.dishes)), torch.tensor(self.dish_classes)] = 1.0
        self.register_buffer("groups", groups)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        smaller = F.interpolate(images, (INNER_SIZE, INNER_SIZE), mode="bilinear", align_corners=False)
        return self.to_classes(self.logits(smaller))

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Of each dish and, last, of anything else, for pictures of any size."""
        features: torch.Tensor = self.features(images)
        logits: torch.Tensor = self.head(self.dropout(features.mean((2, 3))))
        return logits

    def to_classes(self, logits: torch.Tensor) -> torch.Tensor:
        """log(sum(exp)) of each class's dishes, by a table of zeros and ones, less the logit of the rest."""
        dishes, other = logits[:, :-1], logits[:, -1:]
        top = dishes.amax(dim=1, keepdim=True)
        sums = torch.exp(dishes - top) @ self.groups
        return torch.log(sums.clamp_min(1e-30)) + top - other

    @property
    def about(self) -> dict[str, Any]:
        """What a file of these weights says about itself."""
        return {
            **torchvision_network.describe(contract.SYSTEM, ARCHITECTURE),
            "dishes": list(self.dishes),
            "dish_classes": list(self.dish_classes),
        }


def start(features: nn.Module) -> None:
    """Give a body the weights that it starts with."""
    if (found := sha256(STARTING_WEIGHTS)) != _STARTING_SHA256:
        raise GourmetError(f"{STARTING_WEIGHTS} is damaged: its sha256 is {found}, not {_STARTING_SHA256}")
    tensors, _ = load_tensors(STARTING_WEIGHTS)
    put_tensors(features, {name: tensor.float() for name, tensor in tensors.items()}, STARTING_WEIGHTS)


def load(path: Path, architecture: str = "", /) -> tuple[nn.Module, dict[str, Any]]:
    """The network in `path`, ready to answer, and what is known of it.

    With an `architecture`, it is a network of torchvision that answers in the classes itself.
    """
    if architecture not in ("", ARCHITECTURE):
        return torchvision_network.TorchvisionNetwork(contract.SYSTEM, architecture)(path)
    tensors, about = load_tensors(path)
    if not about and "groups" in tensors:  # a served model: its dishes have lost their names
        classes = tensors["groups"].argmax(dim=1).tolist()
        dishes = [f"{class_id:02d}/{number}" for number, class_id in enumerate(classes)]
        about = Food11Network(dishes, classes).about
    check_about(path, about, torchvision_network.describe(contract.SYSTEM, ARCHITECTURE))
    network = Food11Network(about["dishes"], about["dish_classes"])
    put_tensors(network, tensors, path)
    return network.eval(), about
