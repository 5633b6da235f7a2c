"""Muon for matrices, Adam for everything else, as one optimizer.

Muon (Jordan et al., 2024) replaces the gradient's momentum by the nearest matrix whose singular
values are all about 1, so that no direction of a layer is starved. Of MobileNetV2, nine tenths of
whose weights are pointwise convolutions and thereby matrices, it makes more out of a photo than SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn

# Newton-Schulz coefficients and iterations of the method's authors: quick rather than exact.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS: Final = 5
# Matrices as big as this are iterated in bfloat16, which is several times as fast and exact enough.
_HALF_FROM: Final = 128
_ADAM_BETAS: Final = (0.9, 0.98)
_ADAM_RATE: Final = 0.2  # of the matrices' rate


class Muon(torch.optim.Optimizer):
    """Steps of size `lr` in every direction of a matrix; a fixed share of it for other weights."""

    def __init__(self, network: nn.Module, lr: float, momentum: float, weight_decay: float) -> None:
        matrices = list(_matrices(network))
        known = {id(weights) for weights in matrices}
        others = [weights for weights in network.parameters() if id(weights) not in known]
        groups = [{"params": matrices, "matrices": True}, {"params": others, "matrices": False}]
        groups = [group for group in groups if group["params"]]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is not None:
                    move = _move_matrix if group["matrices"] else _move_other
                    move(weights, weights.grad, self.state[weights], group)


def _matrices(network: nn.Module) -> Iterable[torch.Tensor]:
    """The kernels of pointwise convolutions, which are matrices with two axes of length one."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1) and part.groups == 1:
            yield part.weight


def _move_matrix(
    weights: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    if not state:
        state["momentum"] = torch.zeros_like(gradient)
    state["momentum"].lerp_(gradient, 1.0 - group["momentum"])
    update = orthogonal(gradient.lerp(state["momentum"], group["momentum"]).flatten(1))
    tall = max(1.0, update.shape[0] / update.shape[1]) ** 0.5
    weights.mul_(1.0 - group["lr"] * group["weight_decay"])
    weights.add_(update.view_as(weights), alpha=-group["lr"] * tall)


def _move_other(
    weights: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    if not state:
        state.update(step=torch.zeros(()), mean=torch.zeros_like(weights), square=torch.zeros_like(weights))
    first, second = _ADAM_BETAS
    state["step"] += 1.0
    steps = state["step"].item()
    state["mean"].lerp_(gradient, 1.0 - first)
    state["square"].lerp_(gradient.square(), 1.0 - second)
    scale = (state["square"] / (1.0 - second**steps)).sqrt_().add_(1e-8)
    weights.addcdiv_(state["mean"], scale, value=-_ADAM_RATE * group["lr"] / (1.0 - first**steps))


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix` with its singular values brought near 1, by five steps of Newton and Schulz."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    if min(wide.shape) >= _HALF_FROM and _half_is_fast(wide.device):
        wide = wide.bfloat16().contiguous()
    for _ in range(_ITERATIONS):
        square = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(square, square, square, beta=_B, alpha=_C), wide, beta=_A)
    wide = wide.to(matrix.dtype)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide


def _half_is_fast(device: torch.device) -> bool:
    return device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
