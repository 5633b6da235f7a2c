"""Weights to begin with: those of an earlier run, as it left them or as they are served."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Final

import torch
from torch import nn

from gourmet.training.files import BadWeights, Tensors, load_tensors, put_tensors

# What training itself changes besides the parameters; any other buffer says what the network is.
_STATISTICS: Final = re.compile(r"running_(mean|var)$|num_batches_tracked$")


def begin_with(network: nn.Module, path: Path) -> None:
    """Put the weights in `path`, safetensors or TorchScript, into `network`, or say why they do not fit."""
    tensors = _traced(path) if path.suffix == ".pt" else load_tensors(path)[0]
    fixed = {k: v.clone() for k, v in network.named_buffers() if not _STATISTICS.search(k)}
    put_tensors(network, tensors, path)
    for name, value in fixed.items():
        if not torch.equal(tensors[name].cpu(), value.cpu()):
            raise BadWeights(
                f"{path} was trained for other targets than this data has: its {name} differs. "
                "Begin without --init, or with weights of a run on data with the same folders"
            )


def _traced(path: Path) -> Tensors:
    if not path.exists():
        raise BadWeights(
            f"{path} does not exist: name a .safetensors of `gourmet train` or a served model.pt"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # it is what is served
            network = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as exc:
        reason = str(exc).splitlines()[0]
        raise BadWeights(f"{path} cannot be read as TorchScript: {reason}") from exc
    return dict(network.state_dict())
