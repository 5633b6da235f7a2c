"""Networks as ONNX files."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx
import torch
from torch import nn

OPSET: Final = 17


def export(
    network: nn.Module, example: torch.Tensor, path: Path, name: str, output: str, *, batched: bool = True
) -> None:
    """Write `network` with one input `name` and one `output`, for any batch or for the example's alone.

    A batch of any size needs an example of two rows: with one, the exporter takes it for a constant.
    """
    # The exporter that torch now prefers needs a further package (onnxscript) for the same graph.
    with old_but_fastest():
        torch.onnx.export(
            network,
            (example,),
            str(path),
            dynamo=False,
            input_names=[name],
            output_names=[output],
            dynamic_axes={name: {0: "batch"}, output: {0: "batch"}} if batched else None,
            opset_version=OPSET,
        )


def rename_output(path: Path, name: str, new: str) -> None:
    """Give an output a name that the exporter refuses, such as a number."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.output[:] = [new if output == name else output for output in node.output]
    for output in model.graph.output:
        output.name = new if output.name == name else output.name
    onnx.save(model, path)


def check(path: Path, shape: str) -> dict[str, Any]:
    """Have ONNX look the file over; return what its manifest says about it, its input being `shape`."""
    onnx.checker.check_model(onnx.load(path), full_check=True)
    return {"form": "ONNX", "opset": OPSET, "input": shape}


@contextlib.contextmanager
def old_but_fastest() -> Iterator[None]:
    """Silence torch about TorchScript: on CPUs nothing that it would rather have is as fast."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
