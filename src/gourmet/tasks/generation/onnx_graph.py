"""A part of a network as an ONNX file of its own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import onnx
import onnxruntime
import torch
from torch import nn

from gourmet.deploying.target import Check

OPSET: Final = 17


@dataclass(frozen=True)
class Graph:
    """What a part is given, and which of the axes may be of any size."""

    module: nn.Module
    inputs: Mapping[str, torch.Tensor]
    outputs: Sequence[str]
    axes: Mapping[str, Mapping[int, str]]

    def write(self, path: Path) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about constants that are constant
            torch.onnx.export(
                self.module.eval(),
                tuple(self.inputs.values()),
                str(path),
                dynamo=False,
                input_names=list(self.inputs),
                output_names=list(self.outputs),
                dynamic_axes={name: dict(axes) for name, axes in self.axes.items()},
                opset_version=OPSET,
            )
        onnx.checker.check_model(str(path), full_check=True)

    def file(self) -> bytes:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "graph.onnx"
            self.write(path)
            return path.read_bytes()

    def eager(self) -> Sequence[torch.Tensor]:
        with torch.inference_mode():
            found = self.module.eval()(*self.inputs.values())
        return found if isinstance(found, tuple) else (found,)

    def dims(self) -> dict[str, list[int]]:
        """Each tensor's shape without its rows, as the config of a served model says it."""
        outputs = zip(self.outputs, self.eager(), strict=True)
        return {
            name: [-1 if axis in self.axes[name] else size for axis, size in enumerate(tensor.shape) if axis]
            for name, tensor in (*self.inputs.items(), *outputs)
        }

    def same_shapes(self, path: Path) -> Sequence[Check]:
        """A graph alone answers nothing that could be compared but numbers, which quantizing changes."""
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = session.run(list(self.outputs), {name: each.numpy() for name, each in self.inputs.items()})
        shapes = [each.shape for each in found]
        same = shapes == [tuple(each.shape) for each in self.eager()]
        return [Check("shapes of the outputs", ", ".join(map(str, shapes)), "the network's", same)]
