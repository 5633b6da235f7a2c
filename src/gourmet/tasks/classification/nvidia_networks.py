"""The networks that --config names, at random or with a checkpoint: NVIDIA's, torchvision's and timm's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import UsageError
from gourmet.pictures.classifier import IMAGENET_MEAN, IMAGENET_STD
from gourmet.tasks.classification import torchvision_network
from gourmet.training.files import load_tensors, put_tensors, torchvision

_IMAGENET_CLASSES: Final = 1000
# The later of NVIDIA's two layouts numbers the stages of a ResNet from 0, in one module.
_STAGE: Final = re.compile(r"^layers\.(\d+)\.")
_NAMED: Final = ("resnet50", "resnext101-32x4d", "se-resnext101-32x4d", "resnet50-v1")


@dataclass(frozen=True)
class Network:
    """A network in inference mode, and the size and the normalisation of its pictures."""

    module: nn.Module
    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


def network_of(config: str, checkpoint: Path | None, seed: int, labels: int = 0) -> Network:
    """Return the named network with the weights of `checkpoint`, which tell its classes, or at random."""
    outputs = labels or _IMAGENET_CLASSES
    network = build(config, outputs, seed)
    if checkpoint is None:
        _settle(network)
        return network
    tensors = {
        _STAGE.sub(lambda stage: f"layer{int(stage[1]) + 1}.", name): tensor
        for name, tensor in torchvision_network.without_auxiliary(load_tensors(checkpoint)[0]).items()
    }
    classes = torchvision_network.outputs_of(network.module, tensors) or outputs
    if labels:
        torchvision_network.check_outputs(checkpoint, classes, labels)
    if classes != outputs:
        network = build(config, classes, seed)
    for name, own in network.module.state_dict().items():
        if name.endswith("num_batches_tracked"):  # not every program writes it, and it computes nothing
            tensors.setdefault(name, own)
        elif own.ndim == 4 and name in tensors and tensors[name].shape == own.shape[:2]:
            tensors[name] = tensors[name][:, :, None, None]  # a linear layer is a 1×1 convolution
    put_tensors(network.module, tensors, checkpoint)
    return network


def build(config: str, outputs: int, seed: int) -> Network:
    """Build the named network with random weights from a seed."""
    torch.manual_seed(seed)
    if config in _NAMED:
        return Network(_resnet(config, outputs).eval())
    if config.startswith((torchvision_network.PREFIX, torchvision_network.TIMM)):
        module = torchvision_network.build(config, outputs).eval()
        return Network(module, **torchvision_network.pictures(config))
    raise UsageError(
        f"--config {config!r} is not a network known here: use {', '.join(_NAMED)}, torchvision:NAME "
        "such as torchvision:resnet18, or timm:NAME"
    )


def _settle(network: Network) -> None:
    """Take the statistics of batch norms from noise: with the initial ones half precision overflows."""
    norms = [part for part in network.module.modules() if isinstance(part, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        network.module.train()(torch.randn(8, 3, network.size, network.size))
    network.module.eval()
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum


def _resnet(config: str, outputs: int) -> nn.Module:
    """Build one of NVIDIA's three networks, or ResNet-50 as first published."""
    if config.startswith("resnet50"):
        network = torchvision_network.build("torchvision:resnet50", outputs)
        for stage in (2, 3, 4) if config == "resnet50-v1" else ():  # whose first convolution has the stride
            block: Any = network.get_submodule(f"layer{stage}.0")
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
        return network
    resnet = torchvision().models.resnet
    block = _squeezed(resnet.Bottleneck) if config.startswith("se-") else resnet.Bottleneck
    module: nn.Module = resnet.ResNet(block, [3, 4, 23, 3], num_classes=outputs, groups=32, width_per_group=4)
    return module


class _SqueezeAndExcitation(nn.Module):
    """Weigh each channel by the means of all channels; the names are those of NVIDIA's checkpoints."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, 16, 1)
        self.expand = nn.Conv2d(16, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.squeeze(x.mean(dim=(2, 3), keepdim=True)).relu()
        scaled: torch.Tensor = x * self.expand(weights).sigmoid()
        return scaled


def _squeezed(bottleneck: Any) -> Any:
    """Return the block with a squeeze and excitation after its last norm."""

    class Squeezed(bottleneck):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.squeeze = _SqueezeAndExcitation(self.conv3.out_channels)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.squeeze(self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out))))))
            rectified: torch.Tensor = self.relu(out + (x if self.downsample is None else self.downsample(x)))
            return rectified

    return Squeezed
