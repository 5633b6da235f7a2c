"""The networks that --config names: three of NVIDIA's, an older one, any of torchvision's, any of timm's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.tasks.classification import torchvision_network
from gourmet.training.torchvision_import import torchvision

TIMM: Final = "timm:"
_SIDE: Final = 224
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
_BLOCKS: Final = [3, 4, 23, 3]
_NOISE_ROWS: Final = 8

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Network:
    """A network in inference mode, and the pictures that it takes: so large, normalised so."""

    config: str
    module: nn.Module
    side: int = _SIDE
    mean: Channels = MEAN
    std: Channels = STD


class SqueezeAndExcitation(nn.Module):
    """How much each channel counts, from the means of all; the names are those of NVIDIA's checkpoints."""

    def __init__(self, channels: int, squeezed: int = 16) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.squeeze(x.mean(dim=(2, 3), keepdim=True)).relu()
        scaled: torch.Tensor = x * self.expand(weights).sigmoid()
        return scaled


def build(config: str, outputs: int, seed: int) -> Network:
    """The network of that name with so many outputs, at random from a seed."""
    torch.manual_seed(seed)
    if make := _NAMED.get(config):
        return Network(config, make(outputs).eval())
    if config.startswith(torchvision_network.PREFIX):
        return _of_torchvision(config, outputs)
    if config.startswith(TIMM):
        return _of_timm(config, outputs)
    raise UsageError(
        f"--config {config!r} is not a network known here: use {', '.join(_NAMED)}, torchvision:NAME "
        "such as torchvision:resnet18, or timm:NAME"
    )


def settle(network: nn.Module, example: torch.Tensor) -> None:
    """Take the statistics of batch norms from noise, for a network that nobody trained.

    As they begin, a residual network's activations double with every block, and half precision overflows.
    """
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    try:
        with torch.no_grad():
            network.train()(torch.randn(_NOISE_ROWS, *example.shape[1:]))
    finally:
        network.eval()
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum


def _resnet50(outputs: int) -> nn.Module:
    return torchvision_network.build("torchvision:resnet50", outputs)


def _first_resnet50(outputs: int) -> nn.Module:
    """As first published: where a block halves a picture, its first convolution does, not its second."""
    network = _resnet50(outputs)
    for stage in (2, 3, 4):
        block: Any = network.get_submodule(f"layer{stage}.0")
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return network


def _resnext(outputs: int) -> nn.Module:
    """ResNeXt101 32×4d, which torchvision's class can be and its list lacks."""
    resnet = torchvision().models.resnet
    network: nn.Module = resnet.ResNet(
        resnet.Bottleneck, _BLOCKS, num_classes=outputs, groups=32, width_per_group=4
    )
    return network


def _se_resnext(outputs: int) -> nn.Module:
    """The same with a squeeze and excitation after the last norm of each block."""

    class Block(torchvision().models.resnet.Bottleneck):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.squeeze = SqueezeAndExcitation(self.conv3.out_channels)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            identity = x if self.downsample is None else self.downsample(x)
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.relu(self.bn2(self.conv2(out)))
            out = self.squeeze(self.bn3(self.conv3(out)))
            out += identity
            rectified: torch.Tensor = self.relu(out)
            return rectified

    network: nn.Module = torchvision().models.resnet.ResNet(
        Block, _BLOCKS, num_classes=outputs, groups=32, width_per_group=4
    )
    return network


_NAMED: Final[Mapping[str, Callable[[int], nn.Module]]] = {
    "resnet50": _resnet50,
    "resnext101-32x4d": _resnext,
    "se-resnext101-32x4d": _se_resnext,
    "resnet50-v1": _first_resnet50,
}
NAMED: Final = tuple(_NAMED)


def _of_torchvision(config: str, outputs: int) -> Network:
    module = torchvision_network.build(config, outputs).eval()
    weights = torchvision().models.get_model_weights(config.removeprefix(torchvision_network.PREFIX))
    prepares = next(iter(weights)).transforms()  # as those that torchvision itself offers were trained
    return Network(config, module, prepares.crop_size[0], tuple(prepares.mean), tuple(prepares.std))


def _of_timm(config: str, outputs: int) -> Network:
    try:
        timm = importlib.import_module("timm")
    except ImportError as exc:
        raise GourmetError(
            f"--config {config} needs the package timm, which is not installed: run `pip install timm`, or "
            "name a network of torchvision"
        ) from exc
    name = config.removeprefix(TIMM)
    if name not in timm.list_models():
        raise UsageError(f"--config {config}: timm has no network {name!r}; timm.list_models() has all")
    module = timm.create_model(name, pretrained=False, num_classes=outputs).eval()
    about = module.default_cfg
    return Network(config, module, about["input_size"][-1], tuple(about["mean"]), tuple(about["std"]))
