"""The formats that a network is written in, and each opened again as the server will."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import onnx
import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.tasks.classification.export import (
    OPSET,
    export_onnx,
    no_advice,
    open_onnx,
    open_torchscript,
)
from gourmet.tasks.classification.gate import Answers

# As in NVIDIA's example, whose clients ask by these names.
INPUT: Final = "input__0"
OUTPUT: Final = "output__0"


@dataclass(frozen=True)
class Format:
    """What Triton calls it, how it is written, and how it is opened."""

    backend: str
    platform: str
    file: str
    write: Callable[[nn.Module, torch.Tensor, Path], dict[str, Any]]
    open: Callable[[Path], Answers]
    # Of formats whose file is for GPUs of one compute capability: which file is for which.
    by_capability: Mapping[str, str] = field(default_factory=dict)


def _script(network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
    try:
        with no_advice():
            scripted = torch.jit.script(network)
    except Exception as exc:  # the compiler's own, and whatever a network's code raises under it
        said = next((line for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
        raise GourmetError(f"torch.jit.script cannot compile this network ({said}): use --ts-trace") from exc
    return _save(scripted, path, "scripted")


def _trace(network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
    with torch.no_grad(), no_advice():
        traced = torch.jit.trace(network, example)  # type: ignore[no-untyped-call]
    return _save(traced, path, "traced")


def _save(module: Any, path: Path, how: str) -> dict[str, Any]:
    # Through a file of Python's: where the disk is full, torch's own writer ends with nothing but a position.
    with no_advice(), path.open("wb") as file:
        torch.jit.save(module, file)
    return {"form": f"TorchScript, {how}"}


def _onnx(network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
    export_onnx(network, example, path, INPUT, OUTPUT)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    return {"form": "ONNX", "opset": OPSET}


FORMATS: Final[Mapping[str, Format]] = {
    "ts-script": Format("pytorch", "pytorch_libtorch", "model.pt", _script, open_torchscript),
    "ts-trace": Format("pytorch", "pytorch_libtorch", "model.pt", _trace, open_torchscript),
    "onnx": Format(
        "onnxruntime", "onnxruntime_onnx", "model.onnx", _onnx, lambda path: open_onnx(path, INPUT, OUTPUT)
    ),
}
