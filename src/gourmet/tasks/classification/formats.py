"""The formats that a network is written in, and each opened again as the server will."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.gate import Answers

OPSET: Final = 17
# Torch's, about TorchScript: on CPUs nothing that it would rather have is as fast.
no_advice: Final = partial(warnings.catch_warnings, action="ignore", category=DeprecationWarning)


@dataclass(frozen=True)
class Format:
    """A file format: Triton's name of it, how to write it, and how to open it."""

    backend: str
    platform: str
    file: str
    write: Callable[[nn.Module, torch.Tensor, Path], dict[str, Any]]
    open: Callable[[Path], Answers]


def write_onnx(
    network: nn.Module, example: torch.Tensor, path: Path, name: str, output: str, *, batched: bool = True
) -> dict[str, Any]:
    """Write and check an ONNX file with one input `name` and one `output`; returns what it is for a manifest.

    It is for any batch, or for the example's alone. A batch of any size needs an example of two rows: with
    one, the exporter takes it for a constant.
    """
    # The exporter refuses a name such as a number, which the file can have.
    exported = output if not output.isdigit() else "output"
    # The exporter that torch now prefers needs a further package (onnxscript) for the same graph.
    with no_advice():
        torch.onnx.export(
            network,
            (example,),
            str(path),
            dynamo=False,
            input_names=[name],
            output_names=[exported],
            dynamic_axes={name: {0: "batch"}, exported: {0: "batch"}} if batched else None,
            opset_version=OPSET,
        )
    model = onnx.load(path)
    if exported != output:
        for node in model.graph.node:
            node.output[:] = [output if tensor == exported else tensor for tensor in node.output]
        model.graph.output[0].name = output
        onnx.save(model, path)
    onnx.checker.check_model(model, full_check=True)
    return {"form": "ONNX", "opset": OPSET}


def write_traced(network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
    """Write traced TorchScript. The server freezes and fuses it, since the result cannot be saved."""
    with torch.no_grad(), no_advice():
        traced = torch.jit.trace(network, example)  # type: ignore[no-untyped-call]
    return _save(traced, path, "traced")


def write_scripted(network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
    try:
        with no_advice():
            scripted = torch.jit.script(network)
    except Exception as exc:  # the compiler's own, and whatever a network's code raises under it
        reason = next((line for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
        raise GourmetError(
            f"torch.jit.script cannot compile this network ({reason}): use --ts-trace"
        ) from exc
    return _save(scripted, path, "scripted")


def _save(module: Any, path: Path, how: str) -> dict[str, Any]:
    # Through a file of Python's: where the disk is full, torch's own writer ends with nothing but a position.
    with no_advice(), path.open("wb") as file:
        torch.jit.save(module, file)
    return {"form": f"TorchScript, {how}"}


def eager(network: nn.Module) -> Answers:
    def answers(rows: npt.NDArray[Any]) -> Scores:
        with torch.inference_mode():
            return network(torch.from_numpy(rows)).numpy()  # type: ignore[no-any-return]

    return answers


def open_torchscript(path: Path) -> Answers:
    """Open `path` as it is served: frozen, and fused for this machine."""
    with no_advice():
        network = torch.jit.load(str(path)).eval()  # type: ignore[no-untyped-call]
        return eager(torch.jit.optimize_for_inference(torch.jit.freeze(network)))


def open_onnx(path: Path, name: str, output: str, *, batched: bool = True) -> Answers:
    """Open `path` with ONNX Runtime; if it is not `batched`, run one row at a time."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def answers(rows: npt.NDArray[Any]) -> Scores:
        batches = [rows] if batched else np.split(rows, len(rows))
        return np.concatenate([session.run([output], {name: batch})[0] for batch in batches])

    return answers


def format_of(form: str, name: str, output: str, *, batched: bool = True) -> Format:
    """Return the format `onnx`, `ts-script` or `ts-trace` of a network with one input and one output."""
    if form != "onnx":
        write = write_scripted if form == "ts-script" else write_traced
        return Format("pytorch", "pytorch_libtorch", "model.pt", write, open_torchscript)
    return Format(
        "onnxruntime",
        "onnxruntime_onnx",
        "model.onnx",
        partial(write_onnx, name=name, output=output, batched=batched),
        partial(open_onnx, name=name, output=output, batched=batched),
    )
