"""An exponential moving average of a network: what is measured, kept and served."""

from __future__ import annotations

import copy

import torch
from torch import nn


class MovingAverage:
    """A copy of a network that follows it at a distance.

    Statistics of batch normalisation are copied, not averaged: they are averages already, and
    `torch.optim.swa_utils.update_bn` measures them again for what is kept.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def follow(self, network: nn.Module, steps: int) -> None:
        """Take one step towards `network`; a larger one while there are only a few `steps` so far."""
        decay = min(self.decay, (1 + steps) / (10 + steps))
        mine: list[torch.Tensor] = list(self.network.parameters())
        theirs: list[torch.Tensor] = list(network.parameters())
        torch._foreach_lerp_(mine, theirs, 1.0 - decay)
        for kept, new in zip(self.network.buffers(), network.buffers(), strict=True):
            kept.copy_(new)
