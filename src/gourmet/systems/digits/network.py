"""A small convolutional network for one digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from gourmet.export.torchvision_network import describe
from gourmet.systems.digits import contract
from gourmet.training.files import check_about, load_tensors, put_tensors

ARCHITECTURE = "five convolutions 1"


class DigitsNetwork(nn.Module):
    """float [N, 1, 28, 28] -> logits [N, 10].

    Every image is stretched to the range from 0 to 1 first, so that it does not matter whether a
    client sends ink as 0 to 255, as 0 to 1 or less a mean: all of these are in use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(1, 16),
            *_convolution(16, 16),
            nn.MaxPool2d(2),
            *_convolution(16, 32),
            *_convolution(32, 32),
            nn.MaxPool2d(2),
            *_convolution(32, 64),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(64 * 3 * 3, len(contract.SYSTEM.labels)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        faintest = images.amin(dim=(1, 2, 3), keepdim=True)
        strongest = images.amax(dim=(1, 2, 3), keepdim=True)
        logits: torch.Tensor = self.body((images - faintest) / (strongest - faintest).clamp_min(1e-6))
        return logits

    about = describe(contract.SYSTEM, ARCHITECTURE)  # what a file of these weights says about itself


def _convolution(channels: int, filters: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(filters), nn.ReLU()


def load(path: Path, architecture: str = "", /) -> tuple[DigitsNetwork, dict[str, Any]]:
    """Load the network in `path`, ready to answer, and the facts in its file."""
    tensors, about = load_tensors(path)
    check_about(path, about, describe(contract.SYSTEM, architecture or ARCHITECTURE))
    network = DigitsNetwork()
    put_tensors(network, tensors, path)
    return network.eval(), about
