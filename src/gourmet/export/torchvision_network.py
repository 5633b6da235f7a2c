"""Networks of torchvision, timm and NVIDIA's example by name, with as many outputs as there are labels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import IMAGENET_MEAN, IMAGENET_STD, PictureClassifier
from gourmet.served.optional import optional
from gourmet.training.files import Tensors, check_about, load_tensors, put_tensors, torchvision

PREFIX: Final = "torchvision:"
TIMM: Final = "timm:"
# The networks of NVIDIA's example by its names, and ResNet-50 as first published.
NVIDIAS: Final = ("resnet50", "resnext101-32x4d", "se-resnext101-32x4d", "resnet50-v1")
# The later of NVIDIA's two layouts numbers the stages of a ResNet from 0, in one module.
_STAGE: Final = re.compile(r"^layers\.(\d+)\.")
_AUXILIARY: Final = ("aux1.", "aux2.", "AuxLogits.")
_OTHERS: Final = ("segmentation", "detection", "video", "optical_flow", "quantization")


def build(architecture: str, outputs: int, *, pretrained: bool = False, **options: Any) -> nn.Module:
    """Build a network such as `torchvision:resnet18`; `pretrained` downloads weights trained on ImageNet."""
    network: nn.Module
    if architecture.startswith(TIMM) or architecture in NVIDIAS:
        if pretrained:
            raise UsageError(f"--pretrained is for networks of torchvision, and this is {architecture}")
        if architecture in NVIDIAS:
            return _resnet(architecture, outputs)
        network = _timm(architecture).create_model(architecture.removeprefix(TIMM), num_classes=outputs)
        return network
    models, name = torchvision().models, _name(architecture)
    if name in ("googlenet", "inception_v3"):  # as torchvision's own are once they are trained
        options = {"transform_input": True, "aux_logits": False, "init_weights": False, **options}
    network = models.get_model(name, weights=None, num_classes=outputs, **options)
    if pretrained:
        weights = models.get_model_weights(name).DEFAULT
        try:
            tensors = weights.get_state_dict(progress=False, check_hash=True)
        except OSError as exc:  # no network, no such host, a disk that is full
            raise GourmetError(
                f"{weights.url} cannot be downloaded ({exc}): train without --pretrained, "
                f"or put the file into {torch.hub.get_dir()}/checkpoints"
            ) from exc
        own_state = network.state_dict()
        body = {k: v for k, v in tensors.items() if k in own_state and own_state[k].shape == v.shape}
        network.load_state_dict(body, strict=False)
    return network


def _name(architecture: str) -> str:
    """Return torchvision's name of the network; raise UsageError unless torchvision has such a classifier."""
    models, name = torchvision().models, architecture.removeprefix(PREFIX)
    if architecture.startswith(PREFIX) and name in models.list_models(module=models):
        return name
    other = [kind for kind in _OTHERS if name in models.list_models(module=getattr(models, kind))]
    what = f"a network of torchvision.models.{other[0]}" if other else "not an architecture known here"
    raise UsageError(
        f"{architecture!r} is {what}: write {PREFIX} and a classifier of "
        f"torchvision, such as {PREFIX}resnet18 or {PREFIX}mobilenet_v2, or {TIMM} and one of timm, or "
        f"{', '.join(NVIDIAS)}"
    )


def _timm(architecture: str) -> Any:
    """Import the optional package timm; raise UsageError unless it has the network."""
    torchvision()  # which it asks for, and which may have to be helped
    models = optional("timm.models", architecture, "timm", ", or name a network of torchvision")
    # Another name could mean a folder, or code to download.
    name = architecture.removeprefix(TIMM)
    if not (name in models.list_models() or name in models.list_pretrained()):
        raise UsageError(f"{architecture}: timm has no network {name!r}; timm.list_models() has all")
    return models


def _resnet(name: str, outputs: int) -> nn.Module:
    resnet = torchvision().models.resnet
    if name.startswith("resnet50"):
        network: nn.Module = resnet.resnet50(num_classes=outputs)
        for stage in (2, 3, 4) if name == "resnet50-v1" else ():  # whose first convolution has the stride
            first: Any = network.get_submodule(f"layer{stage}.0")
            first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
        return network
    network = resnet.ResNet(
        resnet.Bottleneck, [3, 4, 23, 3], num_classes=outputs, groups=32, width_per_group=4
    )
    if name.startswith("se-"):
        for block in (part for part in network.modules() if isinstance(part, resnet.Bottleneck)):
            block.bn3 = nn.Sequential(block.bn3, _SqueezeAndExcitation(block.bn3.num_features))
    return network


class _SqueezeAndExcitation(nn.Module):
    """Weigh each channel by the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, 16, 1)
        self.expand = nn.Conv2d(16, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.squeeze(x.mean(dim=(2, 3), keepdim=True)).relu()
        weighed: torch.Tensor = x * self.expand(weights).sigmoid()
        return weighed


def fitted(tensors: Tensors, network: nn.Module, architecture: str = "") -> Tensors:
    """Return the tensors by the names of `network`, without auxiliary classifiers, which only training needs.

    NVIDIA's checkpoints have two layouts.
    """
    if architecture in NVIDIAS:
        tensors = {_STAGE.sub(lambda stage: f"layer{int(stage[1]) + 1}.", k): v for k, v in tensors.items()}
    if architecture.startswith("se-"):
        tensors = {k.replace(".bn3.", ".bn3.0."): v for k, v in tensors.items()}
        tensors = {k.replace(".squeeze.", ".bn3.1.", 1): v for k, v in tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(_AUXILIARY)}
    for name, own in network.state_dict().items():
        if name.endswith("num_batches_tracked"):  # not every program writes it, and it computes nothing
            tensors.setdefault(name, own)
        elif own.ndim == 4 and name in tensors and tensors[name].shape == own.shape[:2]:
            tensors[name] = tensors[name][:, :, None, None]  # a linear layer is a 1×1 convolution
    return tensors


def pictures(architecture: str) -> dict[str, Any]:
    """Return how the network's first published weights, of torchvision or timm, want pictures prepared."""
    if architecture in NVIDIAS:
        return {"size": 224, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    if architecture.startswith(TIMM):
        about = _timm(architecture).get_pretrained_cfg(architecture.removeprefix(TIMM))
        return {"size": about.input_size[-1], "mean": tuple(about.mean), "std": tuple(about.std)}
    weights = next(iter(torchvision().models.get_model_weights(_name(architecture))))
    made = weights.transforms()
    return {"size": made.crop_size[0], "mean": tuple(made.mean), "std": tuple(made.std)}


@dataclass(frozen=True)
class TorchvisionNetwork:
    """A system's network: builds it, and reads weights of it; fulfils `system_parts.Load`."""

    system: PictureClassifier
    architecture: str

    def __call__(self, path: Path, architecture: str = "", /) -> tuple[nn.Module, dict[str, Any]]:
        architecture = architecture or self.architecture
        network = build(architecture, len(self.system.labels))
        tensors, about = load_tensors(path)
        described = describe(self.system, architecture)
        about = about or {**described, "foreign": True}
        check_about(path, about, described)
        check_outputs(path, outputs_of(network, tensors), len(self.system.labels))
        put_tensors(network, fitted(tensors, network, architecture), path)
        return network.eval(), about


def outputs_of(network: nn.Module, tensors: Tensors) -> int | None:
    """Return the number of classes in `tensors`, read from the last tensor of `network`."""
    last = tensors.get(list(network.state_dict())[-1])
    return len(last) if last is not None and last.ndim else None


def check_outputs(path: Path, outputs: int | None, labels: int) -> None:
    """Refuse a file with another number of outputs than there are labels."""
    if outputs is not None and outputs != labels:
        raise UsageError(f"{path} has {outputs} classes, and there are {labels} labels: name as many")


def describe(system: PictureClassifier, architecture: str) -> dict[str, Any]:
    """Return the description that is written into a file of weights."""
    return {"system": system.name, "architecture": architecture, "labels": list(system.labels)}
