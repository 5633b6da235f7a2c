"""Muon for matrices, Adam for everything else.

Muon (Jordan et al., 2024) replaces the gradient's momentum by the nearest matrix whose singular values are
all about 1, so that all directions of a layer learn. Nine tenths of MobileNetV2's weights are pointwise
convolutions, which are matrices: it learns more from the same photos than with SGD. torch.optim.Muon does not
support convolutions, and uses bfloat16 on CPUs where that is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

# Newton-Schulz coefficients and iterations of the method's authors: fast rather than exact.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS: Final = 5
# From this size on, matrices use bfloat16: it is several times as fast and exact enough.
_HALF_FROM: Final = 128
_ADAM_BETAS: Final = (0.9, 0.98)
_ADAM_SHARE: Final = 0.2


def optimizers(network: nn.Module, momentum: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of `network`, if it has any, and Adam for its other weights.

    Matrices are pointwise convolutions and linear layers, except the last linear layer. The rate of each
    group is the run's rate times the group's "share".
    """
    linear = [part for part in network.modules() if isinstance(part, nn.Linear)]
    matrices = [
        part.weight
        for part in network.modules()
        if (isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1) and part.groups == 1)
        or (isinstance(part, nn.Linear) and part is not linear[-1])
    ]
    matrix_ids = set(map(id, matrices))
    others = [weights for weights in network.parameters() if id(weights) not in matrix_ids]
    adam = torch.optim.Adam([{"params": others, "share": _ADAM_SHARE}], betas=_ADAM_BETAS)
    return [Muon(matrices, momentum, weight_decay), adam] if matrices else [adam]


class Muon(torch.optim.Optimizer):
    """An optimizer with steps of the same size in every direction of a matrix."""

    def __init__(self, matrices: list[torch.Tensor], momentum: float, weight_decay: float) -> None:
        super().__init__(
            matrices, {"lr": 0.0, "share": 1.0, "momentum": momentum, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for weights in group["params"]:
                if (gradient := weights.grad) is None:
                    continue
                state = self.state[weights]
                if not state:
                    state["momentum"] = torch.zeros_like(gradient)
                state["momentum"].lerp_(gradient, 1.0 - momentum)
                update = orthogonal(gradient.lerp(state["momentum"], momentum).flatten(1))
                tall = max(1.0, update.shape[0] / update.shape[1]) ** 0.5
                weights.mul_(1.0 - rate * group["weight_decay"])
                weights.add_(update.view_as(weights), alpha=-rate * tall)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return `matrix` with its singular values near 1, by five Newton-Schulz iterations."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    if min(wide.shape) >= _HALF_FROM and half_is_fast(matrix.device):
        wide = wide.bfloat16().contiguous()
    for _ in range(_ITERATIONS):
        square = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(square, square, square, beta=_B, alpha=_C), wide, beta=_A)
    wide = wide.to(matrix.dtype)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide


def half_is_fast(device: torch.device) -> bool:
    """Return whether `device` multiplies matrices faster in bfloat16 than in float32."""
    return device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
