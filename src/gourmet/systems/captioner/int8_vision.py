"""ResNet50 of a captioner in eight bits: pixels in, its last grid out; opened by ONNX Runtime."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gourmet.systems.captioner.vision import MEAN, STD, GridVision
from gourmet.tasks import static_int8
from gourmet.tasks.generation.graphs import Graph

GRID: Final = "grid"
# The file beside the weights that learned from what it sees.
BODY: Final = "vision-int8.onnx"
_OPERATORS: Final = ("Resize", "Conv", "MaxPool", "Relu", "Add")


class _Body(nn.Module):
    def __init__(self, vision: GridVision) -> None:
        super().__init__()
        self.vision = copy.deepcopy(vision)
        static_int8.take_pixels(self.vision.conv1, MEAN, STD)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.vision.seen(pixels)


def body(vision: GridVision, photos: npt.NDArray[np.uint8]) -> bytes:
    """The graph of what is frozen: pixels uint8 [N, side, side, 3] -> grid float [N, 2048, 7, 7]."""
    side = photos.shape[1]
    rows = {0: "rows"}
    graph = Graph(
        _Body(vision),
        {static_int8.PIXELS: torch.zeros(2, 3, side, side)},
        (GRID,),
        {static_int8.PIXELS: rows, GRID: rows},
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "body.onnx"
        graph.write(path)
        static_int8.quantize(path, photos, mean=MEAN, operators=_OPERATORS, name=static_int8.PIXELS)
        return path.read_bytes()
