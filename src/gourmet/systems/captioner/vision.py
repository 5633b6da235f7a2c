"""The captioner's vision: ResNet50 up to its last grid of 7 × 7 places, then projected to the decoder's
width.

Its batch norms are part of its convolutions, as weights for serving have them. As first published, the first
convolution of a block halves a picture, not the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

GRID: Final = 7
SIDE: Final = 224
CHANNELS: Final = 64
# ImageNet's.
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
_BLOCKS: Final = (3, 4, 6, 3)
_EPSILON: Final = 1e-5


class _Bottleneck(nn.Module):
    def __init__(self, width: int, middle: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, middle, 1, stride)
        self.conv2 = nn.Conv2d(middle, middle, 3, padding=1)
        self.conv3 = nn.Conv2d(middle, 4 * middle, 1)
        self.downsample = None if width == 4 * middle else nn.Conv2d(width, 4 * middle, 1, stride)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        found = self.conv3(F.relu(self.conv2(F.relu(self.conv1(seen)))))
        return F.relu(found + (seen if self.downsample is None else self.downsample(seen)))


class GridVision(nn.Module):
    """float [N, 3, any, any], normalised -> hidden states [N, 49, width]"""

    def __init__(self, width: int, dropout: float, channels: int = CHANNELS) -> None:
        """Build it; with fewer `channels` it is small enough for tests."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 7, 2, padding=3)
        before = channels
        for stage, blocks in enumerate(_BLOCKS):
            middle = channels << stage
            parts = [
                _Bottleneck(4 * middle if place else before, middle, 2 if stage and not place else 1)
                for place in range(blocks)
            ]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*parts))
            before = 4 * middle
        self.seen_channels = before
        self.project = nn.Linear(before, width)
        self.places = nn.Parameter(torch.randn(GRID * GRID, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout1d(dropout)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.states(self.seen(pictures))

    def seen(self, pictures: torch.Tensor) -> torch.Tensor:
        """The last grid: [N, channels, rows, columns]."""
        large = F.interpolate(pictures, (SIDE, SIDE), mode="bilinear", align_corners=False)
        found = F.max_pool2d(F.relu(self.conv1(large)), 3, 2, padding=1)
        for stage in self.stages():
            found = stage(found)
        return found

    def states(self, seen: torch.Tensor) -> torch.Tensor:
        """The hidden states of what `seen` saw."""
        grid = self.dropout(seen.flatten(2)).transpose(1, 2)
        return self.norm(self.project(grid) + self.places)  # type: ignore[no-any-return]

    def freeze(self) -> None:
        """Freeze everything before `project`."""
        for part in (self.conv1, *self.stages()):
            part.requires_grad_(False)

    def stages(self) -> list[nn.Module]:
        return [self.get_submodule(f"layer{stage + 1}") for stage in range(len(_BLOCKS))]


def normalised(
    pixels: torch.Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> torch.Tensor:
    """uint8 [N, rows, columns, 3] -> float [N, 3, rows, columns]"""
    shares = pixels.permute(0, 3, 1, 2).float() / 255.0
    return (shares - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def folded(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """torchvision's tensors of a ResNet50 for `GridVision`: each norm goes into its convolution."""
    found = {}
    for name in [name for name in tensors if _norm_of(name)]:
        conv, norm = name.removesuffix(".weight"), _norm_of(name)
        scale = tensors[f"{norm}.weight"] / (tensors[f"{norm}.running_var"] + _EPSILON).sqrt()
        conv = conv.removesuffix(".0") if "downsample" in conv else conv
        found[f"{conv}.weight"] = tensors[name] * scale[:, None, None, None]
        found[f"{conv}.bias"] = tensors[f"{norm}.bias"] - tensors[f"{norm}.running_mean"] * scale
    return found


def _norm_of(name: str) -> str:
    """The norm behind the convolution that has this tensor; empty for other tensors."""
    *path, part, _ = ("", *name.split(".")) if name.endswith(".weight") else ("", "")
    if part.startswith("conv"):
        return ".".join([*path, part.replace("conv", "bn")]).lstrip(".")
    return name.replace("downsample.0.weight", "downsample.1") if "downsample.0." in name else ""
