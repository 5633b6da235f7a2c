"""The last layer of a network, solved for what reaches it: training and `gourmet learn-more` both do this.

Softmax regression on activations is convex: there is one best layer, and no rate, epoch or order of the
examples decides which one is found.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

_MAX_STEPS: Final = 200


def solve(
    layer: nn.Linear,
    activations: torch.Tensor,
    targets: torch.Tensor,
    counts: torch.Tensor,
    *,
    pull: float,
    strengths: torch.Tensor | None = None,
) -> None:
    """Fit `layer` to `activations` [rows, inputs], beginning with the weights that it has.

    `targets` [rows, outputs or one more] are the probabilities wanted of each row; a last column beside the
    layer's outputs is for none of the labels, whose logit is zero. `counts` says how much each row counts.
    `pull` holds the weights to those the layer has, on standardised inputs; an input with a greater strength
    is held less.
    """
    mean, deviation = activations.mean(dim=0), activations.std(dim=0, correction=0).clamp_min(1e-6)
    scale = deviation / (torch.ones_like(deviation) if strengths is None else strengths)
    rows = (activations - mean) / scale
    begun = rows @ (layer.weight.detach() * scale).T + layer.bias.detach() + mean @ layer.weight.detach().T
    extra = targets.shape[1] - layer.out_features
    begun = nn.functional.pad(begun, (0, extra))
    change = torch.zeros(targets.shape[1], rows.shape[1], requires_grad=True)
    shift = torch.zeros(targets.shape[1], requires_grad=True)
    counts = counts / counts.sum()
    optimizer = torch.optim.LBFGS(
        [change, shift],
        max_iter=_MAX_STEPS,
        history_size=10,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        likely = torch.log_softmax(begun + rows @ change.T + shift, dim=1)
        found: torch.Tensor = (
            -(counts * (targets * likely).sum(dim=1)).sum() + pull / 2 * change.square().sum()
        )
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        # The same added to all logits changes no probability: the logit of none of the labels becomes zero.
        weights = change - change[-1:] if extra else change
        bias = shift - shift[-1:] if extra else shift
        weights = weights[: layer.out_features] / scale
        layer.weight.add_(weights)
        layer.bias.add_(bias[: layer.out_features] - weights @ mean)


def evenly_counted(classes: torch.Tensor, kinds: int) -> torch.Tensor:
    """What each row counts for its class, so that every class counts alike."""
    return 1.0 / torch.bincount(classes, minlength=kinds).clamp_min(1)[classes].float()


def one_hot(classes: torch.Tensor, kinds: int) -> torch.Tensor:
    """The probabilities wanted of rows of these classes."""
    return nn.functional.one_hot(classes, kinds).float()
