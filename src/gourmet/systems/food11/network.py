"""MobileNetV2 that tells dishes apart and answers in the eleven classes.

It is trained on dishes (a finer target teaches more per photo) and served in classes: a class's
probability is the sum of its dishes' probabilities, which a fixed last layer computes on the
logits. Data without dishes train the same network with one dish a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.systems.food11 import contract
from gourmet.training.files import load_described, put_tensors

ARCHITECTURE = "mobilenet_v2 1.0"


def mobilenet_v2(outputs: int, *, pretrained: bool = False, dropout: float = 0.2) -> nn.Module:
    """torchvision's MobileNetV2, width 1.0; `pretrained` downloads its ImageNet weights."""
    try:
        from torchvision import models
    except RuntimeError:
        # Only now: a torchvision that has operators of its own ends the process if they are declared already.
        _declare_missing_operators()
        from torchvision import models

    network = models.mobilenet_v2(num_classes=outputs, dropout=dropout)
    if pretrained:
        weights = models.MobileNet_V2_Weights.IMAGENET1K_V2
        try:
            imagenet = weights.get_state_dict(progress=False, check_hash=True)
        except OSError as exc:  # no network, no such host, a disk that is full
            raise GourmetError(
                f"{weights.url} cannot be downloaded ({exc}): train without --pretrained, "
                f"or put the file into {torch.hub.get_dir()}/checkpoints"
            ) from exc
        body = {k: v for k, v in imagenet.items() if k.startswith("features.")}
        network.load_state_dict(body, strict=False)
    return cast(nn.Module, network)


class Food11Network(nn.Module):
    """float [N, 3, 224, 224] -> logits [N, 11] whose softmax are the class probabilities."""

    groups: torch.Tensor

    def __init__(
        self, dishes: Sequence[str], dish_classes: Sequence[int], *, pretrained: bool = False
    ) -> None:
        super().__init__()
        self.dishes = tuple(dishes)
        self.dish_classes = tuple(dish_classes)
        self.backbone = mobilenet_v2(len(self.dishes), pretrained=pretrained)
        groups = torch.zeros(len(self.dishes), len(contract.LABELS))
        groups[torch.arange(len(self.dishes)), torch.tensor(self.dish_classes)] = 1.0
        self.register_buffer("groups", groups)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.to_classes(self.backbone(images))

    def to_classes(self, dish_logits: torch.Tensor) -> torch.Tensor:
        """log(sum(exp)) of each class's dishes, as a product with a table of noughts and ones."""
        top = dish_logits.amax(dim=1, keepdim=True)
        sums = torch.exp(dish_logits - top) @ self.groups
        return torch.log(sums.clamp_min(1e-30)) + top

    @property
    def about(self) -> dict[str, Any]:
        """What a file of these weights says about itself."""
        return {
            "system": contract.NAME,
            "architecture": ARCHITECTURE,
            "labels": list(contract.LABELS),
            "dishes": list(self.dishes),
            "dish_classes": list(self.dish_classes),
        }


def load(path: Path) -> tuple[Food11Network, dict[str, Any]]:
    """The network in `path`, ready to answer, and what the file says about it."""
    tensors, about = load_described(path, contract.NAME, ARCHITECTURE, contract.LABELS)
    network = Food11Network(about["dishes"], about["dish_classes"])
    put_tensors(network, tensors, path)
    return network.eval(), about


def _declare_missing_operators() -> None:
    """torchvision built for CUDA refuses to be imported beside a CPU-only torch for want of these two."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")  # type: ignore[no-untyped-call]
            _LIBRARIES.append(library)


_LIBRARIES: list[torch.library.Library] = []
