"""What a system says about each of its served models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

Pixels = npt.NDArray[np.uint8]
Scores = npt.NDArray[np.float32]
# From pixels [N, …] to scores [N, classes]: logits, or probabilities where the model gives those.
Answers = Callable[[Pixels], Scores]


@dataclass(frozen=True)
class Calibration:
    """What evaluation found out about the network's confidence."""

    temperature: float
    threshold: float


@dataclass(frozen=True)
class Job:
    """What a model is built from."""

    network: nn.Module
    calibration: Calibration
    photos: Pixels  # for quantization, from the training part


@dataclass(frozen=True)
class Target:
    """A served model: where it lies, how it is built from a network, how it is opened again."""

    model: str
    file: str
    build: Callable[[Job, Path], dict[str, Any]]  # writes the file, returns facts for the manifest
    answers: Callable[[Path], Answers]  # opens the file as the server will
    exact: bool  # its scores are the network's logits; otherwise it is quantized
    batched: bool = True  # it takes several rows at once; otherwise one is a whole request
