"""The networks that --config names, at random or with a checkpoint: NVIDIA's, torchvision's and timm's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import UsageError
from gourmet.runtime.manifest import sha256
from gourmet.runtime.reading import check_weights
from gourmet.tasks.classification import torchvision_network
from gourmet.training.files import load_tensors, put_tensors, torchvision

_SIDE: Final = 224
_IMAGENET_CLASSES: Final = 1000
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
_BLOCKS: Final = [3, 4, 23, 3]
_NOISE_ROWS: Final = 8
# The later of NVIDIA's two layouts numbers the stages of a ResNet from 0, in one module.
_STAGE: Final = re.compile(r"^layers\.(\d+)\.")

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
    """Weigh each channel by the means of all channels; the names are those of NVIDIA's checkpoints."""

    def __init__(self, channels: int, squeezed: int = 16) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.squeeze(x.mean(dim=(2, 3), keepdim=True)).relu()
        scaled: torch.Tensor = x * self.expand(weights).sigmoid()
        return scaled


def network_of(config: str, checkpoint: Path | None, seed: int, labels: int = 0) -> Network:
    """The network of that name with the weights of `checkpoint`, whose classes are counted, or at random."""
    outputs = labels or _IMAGENET_CLASSES
    network = build(config, outputs, seed)
    if checkpoint is None:
        settle(network)
        return network
    tensors = {
        _STAGE.sub(lambda found: f"layer{int(found[1]) + 1}.", name): tensor
        for name, tensor in torchvision_network.without_auxiliary(load_tensors(checkpoint)[0]).items()
    }
    found = torchvision_network.outputs_of(network.module, tensors) or outputs
    if labels:
        torchvision_network.check_outputs(checkpoint, found, labels)
    if found != outputs:
        network = build(config, found, seed)
    for name, own in network.module.state_dict().items():
        if name.endswith("num_batches_tracked"):  # which not every program writes, and which computes nothing
            tensors.setdefault(name, own)
        elif own.ndim == 4 and name in tensors and tensors[name].shape == own.shape[:2]:
            tensors[name] = tensors[name][:, :, None, None]  # a linear layer is a 1×1 convolution
    put_tensors(network.module, tensors, checkpoint)
    return network


def weights_of(checkpoint: Path | None, seed: int) -> dict[str, str]:
    """Return the manifest's description of the weights."""
    if checkpoint is None:
        return {"weights": f"none: initialised at random from seed {seed}"}
    check_weights(checkpoint)
    return {"weights": checkpoint.name, "weights_sha256": sha256(checkpoint)}


def build(config: str, outputs: int, seed: int) -> Network:
    """The network of that name with so many outputs, at random from a seed."""
    torch.manual_seed(seed)
    if make := _NAMED.get(config):
        return Network(config, make(outputs).eval())
    if config.startswith((torchvision_network.PREFIX, torchvision_network.TIMM)):
        module = torchvision_network.build(config, outputs).eval()
        return Network(config, module, *torchvision_network.pictures(config).values())
    raise UsageError(
        f"--config {config!r} is not a network known here: use {', '.join(_NAMED)}, torchvision:NAME "
        "such as torchvision:resnet18, or timm:NAME"
    )


def settle(network: Network) -> None:
    """Take the statistics of batch norms from noise, for a network that nobody trained.

    As they begin, a residual network's activations double with every block, and half precision overflows.
    """
    module = network.module
    norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(torch.randn(_NOISE_ROWS, 3, network.side, network.side))
    module.eval()
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum


def _resnet50(outputs: int) -> nn.Module:
    return torchvision_network.build("torchvision:resnet50", outputs)


def _first_resnet50(outputs: int) -> nn.Module:
    """Build ResNet-50 as first published: the first convolution of a block halves a picture."""
    network = _resnet50(outputs)
    for stage in (2, 3, 4):
        block: Any = network.get_submodule(f"layer{stage}.0")
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return network


def _resnext(outputs: int, block: Any = None) -> nn.Module:
    """ResNeXt101 32×4d, which torchvision's class can be and its list lacks."""
    resnet = torchvision().models.resnet
    network: nn.Module = resnet.ResNet(
        block or resnet.Bottleneck, _BLOCKS, num_classes=outputs, groups=32, width_per_group=4
    )
    return network


def _se_resnext(outputs: int) -> nn.Module:
    """The same with a squeeze and excitation after the last norm of each block."""

    class SqueezedBottleneck(torchvision().models.resnet.Bottleneck):  # type: ignore[misc]
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

    return _resnext(outputs, SqueezedBottleneck)


_NAMED: Final[Mapping[str, Callable[[int], nn.Module]]] = {
    "resnet50": _resnet50,
    "resnext101-32x4d": _resnext,
    "se-resnext101-32x4d": _se_resnext,
    "resnet50-v1": _first_resnet50,
}
