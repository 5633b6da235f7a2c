"""The digits network as the two models that are served: one batches, one is as its first users know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gourmet.deploying import onnx_form
from gourmet.deploying.target import Answers, Job, Pixels, Target
from gourmet.systems.digits import contract
from gourmet.systems.digits.data import listing
from gourmet.systems.digits.network import load

__all__ = ["PREPROCESSING", "TARGETS", "eager", "load", "photos"]

# What torch's exporter called the tensors of the network that `onnx-mnist-cpu` was first made from.
_MNIST_INPUT, _MNIST_OUTPUT = "input.1", "26"

Tick = Callable[[float], None]

PREPROCESSING: Final = {
    "ink": "white on black; background is what the border mostly is",
    "size": contract.INPUT_SIZE,
    "place": "the longer side 20 pixels, the centre of mass in the middle",
    "scale": "any: the network stretches each image to the range from 0 to 1",
    "code": "gourmet.systems.digits.contract",
}


def photos(data: Path, tick: Tick) -> tuple[Pixels, Pixels, npt.NDArray[np.int64]]:
    """Digits to calibrate with, digits to pass the gate with, and the classes of the latter."""
    held = listing(data, "validation")
    tick(1.0)
    chosen = [held[row] for row in np.random.default_rng(0).permutation(len(held))]
    images = np.stack([digit.image for digit in chosen])
    # Nothing here is quantized, so nothing is calibrated.
    return images[:0], images, np.array([digit.class_id for digit in chosen])


def eager(network: nn.Module) -> Answers:
    """The network as it was trained, asked with pixels."""
    return onnx_form.eager(network, contract.normalise)


def build_batched(job: Job, path: Path) -> dict[str, Any]:
    """One file with a batch of any size."""
    onnx_form.export(job.network, _example(2), path, "input", "logits")
    return onnx_form.check(path, "float32 [N, 1, 28, 28]")


def open_batched(path: Path) -> Answers:
    """Opened by ONNX Runtime, asked with the contract's tensor."""
    return onnx_form.open_file(path, "input", "logits", contract.normalise)


def build_mnist(job: Job, path: Path) -> dict[str, Any]:
    """One file that takes one image at a time."""
    onnx_form.export(job.network, _example(1), path, _MNIST_INPUT, "logits", batched=False)
    onnx_form.rename_output(path, "logits", _MNIST_OUTPUT)
    return onnx_form.check(path, "float32 [1, 1, 28, 28]")


def open_mnist(path: Path) -> Answers:
    """Opened by ONNX Runtime, asked with the contract's tensor."""
    return onnx_form.open_file(path, _MNIST_INPUT, _MNIST_OUTPUT, contract.normalise)


def _example(rows: int) -> torch.Tensor:
    return torch.rand(rows, 1, contract.INPUT_SIZE, contract.INPUT_SIZE)


TARGETS: Final[Mapping[str, Target]] = {
    "onnx": Target("digits", "model.onnx", build_batched, open_batched, exact=True),
    "mnist": Target("onnx-mnist-cpu", "model.onnx", build_mnist, open_mnist, exact=True, batched=False),
}
