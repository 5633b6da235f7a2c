"""Weights to begin with: those of an earlier run, as it left them or as they are served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import torch
from torch import nn

from gourmet.training.files import BadWeights, foreign_tensors, put_tensors

# What training itself changes besides the parameters; any other buffer says what the network is.
_STATISTICS: Final = re.compile(r"running_(mean|var)$|num_batches_tracked$")


def begin_with(network: nn.Module, path: Path) -> None:
    """Put the weights in `path` into `network`, or say why they do not fit."""
    tensors = foreign_tensors(path)
    fixed = {k: v.clone() for k, v in network.named_buffers() if not _STATISTICS.search(k)}
    put_tensors(network, tensors, path)
    for name, value in fixed.items():
        if not torch.equal(tensors[name].cpu(), value.cpu()):
            raise BadWeights(
                f"{path} was trained for something else: its {name}, which training does not change, "
                "differs. Begin without --init, or with weights of a run on data divided in the same way"
            )
