"""The food network as the three models that are served: TorchScript, ONNX, and ONNX in int8."""

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
from gourmet.systems.food11 import contract, int8
from gourmet.systems.food11.data import decode, listing
from gourmet.systems.food11.network import load

__all__ = ["PREPROCESSING", "TARGETS", "eager", "load", "photos"]

_CALIBRATED_ON: Final = 512

Tick = Callable[[float], None]

PREPROCESSING: Final = {
    "crop": "the central square",
    "size": contract.INPUT_SIZE,
    "filter": "bilinear, with a reducing gap of 2",
    "mean": contract.MEAN,
    "std": contract.STD,
    "code": "gourmet.systems.food11.contract",
}


def photos(data: Path, tick: Tick) -> tuple[Pixels, Pixels, npt.NDArray[np.int64]]:
    """Photos to calibrate with, photos to pass the gate with, and the classes of the latter."""
    parts = [listing(data, "train", _CALIBRATED_ON), listing(data, "validation")]
    total = sum(map(len, parts))
    calibration = decode(parts[0], contract.INPUT_SIZE, lambda done: tick(done / total))
    gate = decode(parts[1], contract.INPUT_SIZE, lambda done: tick((done + len(parts[0])) / total))
    order = np.random.default_rng(0).permutation(len(gate.classes))  # the first rows are of all classes
    return calibration.images, gate.images[order], gate.classes[order]


def eager(network: nn.Module) -> Answers:
    """The network as it was trained, asked with pixels."""
    return onnx_form.eager(network, contract.normalise)


def build_torchscript(job: Job, path: Path) -> dict[str, Any]:
    """Trace the network. Freezing and fusing are the server's: what they make cannot be saved."""
    with torch.no_grad(), onnx_form.old_but_fastest():
        traced = torch.jit.trace(job.network, _example())  # type: ignore[no-untyped-call]
    traced.save(str(path))
    return {"form": "TorchScript, traced", "input": "float32 [N, 3, 224, 224]"}


def open_torchscript(path: Path) -> Answers:
    """Opened as the Python model opens it."""
    with onnx_form.old_but_fastest():
        network = torch.jit.load(str(path)).eval()  # type: ignore[no-untyped-call]
        return eager(torch.jit.optimize_for_inference(torch.jit.freeze(network)))


def build_onnx(job: Job, path: Path) -> dict[str, Any]:
    """One file with a batch of any size; batch normalisation is folded into the convolutions."""
    onnx_form.export(job.network, _example(), path, "input", "output")
    return onnx_form.check(path, "float32 [N, 3, 224, 224]")


def open_onnx(path: Path) -> Answers:
    """Opened by ONNX Runtime, asked with the contract's tensor."""
    return onnx_form.open_file(path, "input", "output", contract.normalise)


def open_int8(path: Path) -> Answers:
    """Opened by ONNX Runtime, asked with pixels."""
    return onnx_form.open_file(path, "image", "probabilities")


def _example() -> torch.Tensor:
    return torch.randn(2, 3, contract.INPUT_SIZE, contract.INPUT_SIZE)


TARGETS: Final[Mapping[str, Target]] = {
    "torchscript": Target("food_classifier", "model.pt", build_torchscript, open_torchscript, exact=True),
    "onnx": Target("food_classifier_onnx", "model.onnx", build_onnx, open_onnx, exact=True),
    "int8": Target("food_classifier_int8", "model.onnx", int8.build, open_int8, exact=False),
}
