"""Networks of torchvision and timm by name, with as many outputs as a system has labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.runtime.optional import optional
from gourmet.training.files import Tensors, check_about, load_tensors, put_tensors, torchvision

PREFIX: Final = "torchvision:"
TIMM: Final = "timm:"
_AUXILIARY: Final = ("aux1.", "aux2.", "AuxLogits.")
_OTHERS: Final = ("segmentation", "detection", "video", "optical_flow", "quantization")


def build(architecture: str, outputs: int, *, pretrained: bool = False, **options: Any) -> nn.Module:
    """Build a network such as `torchvision:resnet18`; `pretrained` downloads weights trained on ImageNet."""
    network: nn.Module
    if architecture.startswith(TIMM):
        if pretrained:
            raise UsageError(f"--pretrained is for networks of torchvision, and this is {architecture}")
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
        mine = network.state_dict()
        body = {k: v for k, v in tensors.items() if k in mine and mine[k].shape == v.shape}
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
        f"torchvision, such as {PREFIX}resnet18 or {PREFIX}mobilenet_v2, or {TIMM} and one of timm"
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


def without_auxiliary(tensors: Tensors) -> Tensors:
    """Drop the auxiliary classifiers of some torchvision networks: only training needs them."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_AUXILIARY)}


def pictures(architecture: str) -> dict[str, Any]:
    """Return how the network's first published weights, of torchvision or timm, want pictures prepared."""
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
        put_tensors(network, without_auxiliary(tensors), path)
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
