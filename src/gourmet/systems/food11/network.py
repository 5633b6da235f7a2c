"""Google's food_V1, frozen, with one linear layer that answers in the eleven classes.

food_V1 is a MobileNetV1 that tells 2,023 dishes apart. The linear layer sees three things of a photo: how
likely it is to be each of 448 of those dishes, how likely the dishes of each class are together, and the mean
of the last feature map. Which class a dish belongs to stands in dishes.csv: a person wrote it down, so the
network knows what a pancake is even where no training photo shows one.

Only the linear layer is trained. The weights before it are those of starting_weights.safetensors (NOTICE).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from gourmet.errors import GourmetError
from gourmet.export import torchvision_network
from gourmet.served.manifest import sha256
from gourmet.systems.food11 import contract
from gourmet.training.files import check_about, load_tensors, put_tensors

ARCHITECTURE: Final = "mobilenet_v1 1.0"
STARTING_WEIGHTS: Final = Path(__file__).with_name("starting_weights.safetensors")
_STARTING_SHA256: Final = "8eb5b8c6de8db8329d5bf1d738fcd135822b4a1b908b0326f35a9c50e14aba89"
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
_AFTER: Final = (0, 1, 0, 1)  # rows and columns of zeros: left, right, above, below
# Strengths of one input of each kind (a class, a feature) in the layer; that of a dish is 1. Chosen by
# accuracy on held-out sources, among 3 and 6, and 0, 0.3, 0.5 and 1: see MODEL_CARD.md.
_CLASS_STRENGTH: Final = 3.0
_FEATURE_STRENGTH: Final = 0.5


class _SamePadding(nn.Conv2d):
    """A 3×3 convolution of stride 2 that pads as TensorFlow does: nothing before, one after.

    Measured: with one on both sides, balanced accuracy falls by two points.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.onnx.is_in_onnx_export():
            output: torch.Tensor = _PaddedInOnnx.apply(  # type: ignore[no-untyped-call]
                images, self.weight, self.bias, self.groups
            )
            return output
        return super().forward(F.pad(images, _AFTER))


class _PaddedInOnnx(torch.autograd.Function):
    """The same as one ONNX node, which engines run and quantize as any other convolution."""

    @staticmethod
    def forward(
        ctx: Any, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int
    ) -> torch.Tensor:
        return F.conv2d(F.pad(images, _AFTER), weight, bias, stride=2, groups=groups)

    @staticmethod
    def symbolic(g: Any, images: Any, weight: Any, bias: Any, groups: int) -> Any:
        shape = {"kernel_shape_i": [3, 3], "strides_i": [2, 2], "pads_i": [0, 0, 1, 1], "group_i": groups}
        return g.op("Conv", images, weight, bias, **shape)


def body() -> nn.Sequential:
    """Build MobileNetV1 up to its last feature map, without batch normalisation."""
    layers: list[nn.Module] = [_SamePadding(3, 32, 3, stride=2), nn.ReLU6()]
    inputs = 32
    for stride, outputs in _LAYERS:
        if stride == 1:
            layers.append(nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs))
        else:
            layers.append(_SamePadding(inputs, inputs, 3, stride=2, groups=inputs))
        layers += [nn.ReLU6(), nn.Conv2d(inputs, outputs, 1), nn.ReLU6()]
        inputs = outputs
    return nn.Sequential(*layers)


class Food11Network(nn.Module):
    """float [N, 3, 224, 224] -> logits [N, 11] whose softmax are the class probabilities.

    Their level tells food from anything else: log(sum(exp)) is the logit of its being food.
    """

    groups: torch.Tensor

    def __init__(self, *, pretrained: bool = False) -> None:
        super().__init__()
        labels = contract.SYSTEM.labels
        self.features = body()
        self.dishes = nn.Linear(_FEATURES, len(contract.SYSTEM.dishes))
        # The class of each dish; the last column is for dishes of several classes.
        groups = torch.zeros(len(contract.SYSTEM.dishes), len(labels) + 1)
        for row, dish in enumerate(contract.SYSTEM.dishes):
            groups[row, labels.index(dish.label) if dish.label else len(labels)] = 1.0
        self.register_buffer("groups", groups)
        self.last = nn.Linear(len(contract.SYSTEM.dishes) + groups.shape[1] + _FEATURES, len(labels))
        if pretrained:
            start(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.with_dishes(images)[0]

    def with_dishes(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits, and the probability of each dish [N, 448]."""
        features = self.features(images).mean((2, 3))
        likely = torch.softmax(self.dishes(features), dim=1)
        # Roots, since a linear layer would hardly notice a dish of two percent.
        logits: torch.Tensor = self.last(
            torch.cat([likely.sqrt(), (likely @ self.groups).sqrt(), features], dim=1)
        )
        return logits, likely

    @property
    def strengths(self) -> torch.Tensor:
        """Return how freely the linear layer may use each of its inputs."""
        kinds = [
            (len(contract.SYSTEM.dishes), 1.0),
            (self.groups.shape[1], _CLASS_STRENGTH),
            (_FEATURES, _FEATURE_STRENGTH),
        ]
        return torch.cat([torch.full((inputs,), strength) for inputs, strength in kinds])

    @property
    def about(self) -> dict[str, Any]:
        """Return the description that is written into a file of these weights."""
        return torchvision_network.describe(contract.SYSTEM, ARCHITECTURE)


def with_dishes(network: nn.Module) -> nn.Module:
    """Return a food network that also returns the probabilities of dishes; others stay as they are."""
    if not isinstance(network, Food11Network):
        return network
    served = copy.copy(network)
    served.forward = served.with_dishes  # type: ignore[assignment,method-assign]
    return served


def start(network: Food11Network) -> None:
    """Give a network the weights that are never trained."""
    if (digest := sha256(STARTING_WEIGHTS)) != _STARTING_SHA256:
        raise GourmetError(f"{STARTING_WEIGHTS} is damaged: its sha256 is {digest}, not {_STARTING_SHA256}")
    tensors, _ = load_tensors(STARTING_WEIGHTS)
    own = {name: tensor for name, tensor in network.state_dict().items() if name not in tensors}
    put_tensors(network, {name: tensor.float() for name, tensor in tensors.items()} | own, STARTING_WEIGHTS)


def load(path: Path, architecture: str = "", /) -> tuple[nn.Module, dict[str, Any]]:
    """Load the network in `path`, ready to answer, and the facts about it.

    With an `architecture`, it is a network of torchvision that answers in the classes itself.
    """
    if architecture not in ("", ARCHITECTURE):
        return torchvision_network.TorchvisionNetwork(contract.SYSTEM, architecture)(path)
    tensors, about = load_tensors(path)
    network = Food11Network()
    if not about and "groups" in tensors:  # a served model
        about = network.about
    check_about(path, about, torchvision_network.describe(contract.SYSTEM, ARCHITECTURE))
    put_tensors(network, tensors, path)
    return network.eval(), about
