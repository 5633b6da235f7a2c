"""A checkpoint of anybody's into a network: plain, wrapped, safetensors, or under NVIDIA's own names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.training.files import Tensors, load_tensors

# The later of NVIDIA's two layouts numbers the stages of a ResNet from 0, in one module.
_STAGE: Final = re.compile(r"^layers\.(\d+)\.")
_NAMED: Final = 3


def read(path: Path) -> Tensors:
    """The tensors of a checkpoint by torchvision's names; no code in it runs."""
    tensors, _ = load_tensors(path)
    return {_STAGE.sub(_stage, name): tensor for name, tensor in tensors.items()}


def _stage(found: re.Match[str]) -> str:
    return f"layer{int(found[1]) + 1}."


def outputs(network: nn.Module, tensors: Tensors) -> int | None:
    """How many classes a checkpoint has, by the last tensor of a network like it; None if it lacks that."""
    name = list(network.state_dict())[-1]
    return len(tensors[name]) if name in tensors and tensors[name].ndim else None


def fill(network: nn.Module, tensors: Tensors, path: Path, config: str) -> None:
    """Put the tensors of `path` into `network`; raise GourmetError that names what does not fit."""
    wanted = network.state_dict()
    # How many batches a norm has seen is not said by every program, and computes nothing.
    extra = {name: wanted[name] for name in wanted if name.endswith("num_batches_tracked")}
    given = {**extra, **{name: _as(tensor, wanted.get(name)) for name, tensor in tensors.items()}}
    shapes = {
        name: f"{name} {list(given[name].shape)} instead of {list(wanted[name].shape)}"
        for name in wanted
        if name in given and given[name].shape != wanted[name].shape
    }
    problems = [
        f"{words} {_first(names)}"
        for words, names in (
            ("it lacks", [name for name in wanted if name not in given]),
            ("it has beside those", [name for name in given if name not in wanted]),
            ("it has other shapes:", shapes.values()),
        )
        if names
    ]
    if problems:
        raise GourmetError(f"{path} is not a checkpoint of {config}: {'; '.join(problems)}")
    if wrong := [name for name, tensor in given.items() if not _finite(tensor)]:
        raise GourmetError(f"{path} holds values that are not finite, in {_first(wrong)}: train it again")
    network.load_state_dict(given)


def _as(tensor: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
    """A linear layer as the 1×1 convolution that it is, where the network has that."""
    if wanted is not None and wanted.ndim == 4 and tensor.shape == wanted.shape[:2]:
        return tensor[:, :, None, None]
    return tensor


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _first(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
