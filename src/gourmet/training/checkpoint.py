"""A run's whole state as one file of tensors, so that a killed run goes on as if nothing had been."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gourmet.errors import UsageError
from gourmet.training.average import MovingAverage
from gourmet.training.files import Tensors, load_tensors, put_tensors, save_tensors


@dataclass
class Position:
    """Where a run is. Every step draws its random numbers from its own position, so there is no more."""

    epoch: int = 0
    seen: int = 0  # examples of this epoch that are behind us
    steps: int = 0
    loss_sum: float = 0.0  # over the examples of this epoch
    seconds: float = 0.0


def save(
    path: Path,
    network: nn.Module,
    average: MovingAverage,
    optimizer: torch.optim.Optimizer,
    position: Position,
    about: dict[str, Any],
) -> None:
    """Write everything that the next step depends on."""
    tensors: Tensors = {}
    tensors |= {f"network.{k}": v for k, v in network.state_dict().items()}
    tensors |= {f"average.{k}": v for k, v in average.network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v for k, v in state.items() if v is not None}
    save_tensors(path, tensors, {**about, "position": vars(position)})


def restore(
    path: Path,
    network: nn.Module,
    average: MovingAverage,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
) -> Position:
    """Load what `save` wrote into the three, after checking that it is a run of the same network."""
    tensors, about = load_tensors(path)
    for key, value in identity.items():
        if about.get(key) != value:
            raise UsageError(
                f"{path} is a run with {key} {about.get(key)!r}, not {value!r}: "
                "resume with what it was started with, or choose another --out"
            )
    put_tensors(network, _part(tensors, "network"), path)
    put_tensors(average.network, _part(tensors, "average"), path)
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in _part(tensors, "optimizer").items():
        index, _, key = name.partition(".")
        states.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    return Position(**about["position"])


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(f"{prefix}."): v for k, v in tensors.items() if k.startswith(f"{prefix}.")}
