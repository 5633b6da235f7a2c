"""Solve the last layer of a network for its activations, for training and `gourmet learn-more`.

Softmax regression on activations is convex: there is one best layer, and no rate, epoch or order of the
examples decides which one is found. numpy alone, since a machine that only serves has no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Classes = npt.NDArray[np.integer[Any]]

_MAX_STEPS: Final = 200
_HISTORY: Final = 10
_GRADIENT: Final = 1e-6
_GAIN: Final = 1e-6


@dataclass(frozen=True)
class Layer:
    """Activations [rows, inputs] -> logits [rows, outputs]."""

    weight: npt.NDArray[np.float32]  # [outputs, inputs]
    bias: npt.NDArray[np.float32]

    def __call__(self, activations: Floats) -> npt.NDArray[np.float32]:
        return np.asarray(activations @ self.weight.T + self.bias, np.float32)

    def towards(self, other: Layer, share: float) -> Layer:
        """Interpolate between both layers; a share of 1 gives the other one."""
        return Layer(
            self.weight + np.float32(share) * (other.weight - self.weight),
            self.bias + np.float32(share) * (other.bias - self.bias),
        )


def solve(
    begun: Layer,
    activations: Floats,
    targets: Floats,
    counts: Floats,
    *,
    pull: float,
    strengths: Floats | None = None,
    start: Layer | None = None,
) -> Layer:
    """Return the layer that fits `activations` [rows, inputs] best, starting from the weights of `begun`.

    `targets` [rows, outputs or one more] are the probabilities wanted of each row; a last column beside the
    layer's outputs is for none of the labels, whose logit is zero. `counts` says how much each row counts.
    `pull` holds the weights to those of `begun`, on standardised inputs; an input with a greater strength is
    held less. `start` is a layer near the solution, which is then found sooner.
    """
    outputs, inputs = begun.weight.shape
    mean = activations.mean(axis=0, dtype=np.float64)
    deviation = np.maximum(activations.std(axis=0, dtype=np.float64), 1e-6)
    scale = deviation / (1.0 if strengths is None else strengths)
    rows = ((activations - mean) / scale).astype(np.float32)
    kinds = targets.shape[1]
    first = np.pad(begun(activations).astype(np.float64), ((0, 0), (0, kinds - outputs)))
    share = (counts / counts.sum())[:, np.newaxis]

    def loss(unknown: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient for a change of the weights; the bias is the last column."""
        change, shift = unknown[:, :-1], unknown[:, -1]
        logits = first + rows @ change.T.astype(np.float32) + shift
        logits -= logits.max(axis=1, keepdims=True)
        likely = np.exp(logits)
        total = likely.sum(axis=1, keepdims=True)
        value = -float((share * targets * (logits - np.log(total))).sum()) + pull / 2 * float(
            (change**2).sum()
        )
        wrong = share * (likely / total * targets.sum(axis=1, keepdims=True) - targets)
        gradient = np.empty_like(unknown)
        gradient[:, :-1] = wrong.T.astype(np.float32) @ rows + pull * change
        gradient[:, -1] = wrong.sum(axis=0)
        return value, gradient

    unknown = np.zeros((kinds, inputs + 1))
    if start:
        weights = start.weight.astype(np.float64) - begun.weight
        unknown[:outputs, :-1] = weights * scale
        unknown[:outputs, -1] = start.bias - begun.bias + weights @ mean
        unknown -= unknown.mean(axis=0)  # which changes no probability, and pulls least
    unknown = _least(loss, unknown)
    # The same added to all logits changes no probability: the logit of none of the labels becomes zero.
    if kinds > outputs:
        unknown = unknown - unknown[-1:]
    weights = unknown[:outputs, :-1] / scale
    return Layer(
        (begun.weight + weights).astype(np.float32),
        (begun.bias + unknown[:outputs, -1] - weights @ mean).astype(np.float32),
    )


def _least(loss: Callable[[Floats], tuple[float, Floats]], unknown: Floats) -> Floats:
    """Minimise a convex function by L-BFGS (Nocedal and Wright, Numerical Optimization, 7.2)."""
    value, gradient = loss(unknown)
    history: list[tuple[Floats, Floats, float]] = []
    for _ in range(_MAX_STEPS):
        if np.abs(gradient).max() < _GRADIENT:
            break
        direction, shares = -gradient, []
        for moved, turned, curvature in reversed(history):
            shares.append(float((moved * direction).sum()) / curvature)
            direction = direction - shares[-1] * turned
        if history:
            moved, turned, curvature = history[-1]
            direction = direction * (curvature / float((turned**2).sum()))
        for (moved, turned, curvature), share in zip(history, reversed(shares), strict=True):
            direction = direction + (share - float((turned * direction).sum()) / curvature) * moved
        slope = float((gradient * direction).sum())
        length = 1.0 if history else min(1.0, 1.0 / float(np.abs(gradient).sum()))
        while True:
            moved = length * direction
            next_value, next_gradient = loss(unknown + moved)
            if next_value <= value + 1e-4 * length * slope or length < 1e-8:
                break
            length /= 2
        turned = next_gradient - gradient
        gain, curvature = value - next_value, float((moved * turned).sum())
        if gain <= 0:
            break
        unknown, value, gradient = unknown + moved, next_value, next_gradient
        if curvature > 1e-12:
            history = [*history[1 - _HISTORY :], (moved, turned, curvature)]
        if gain < _GAIN:
            break
    return unknown


def evenly_counted(classes: Classes, kinds: int) -> Floats:
    """Return a weight for each row, so that all classes count equally."""
    return 1.0 / np.maximum(np.bincount(classes, minlength=kinds), 1)[classes]


def one_hot(classes: Classes, kinds: int) -> Floats:
    """Return the target probabilities of rows of these classes."""
    return np.eye(kinds)[classes]
