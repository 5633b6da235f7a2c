"""OpenVINO behind the interface of the served loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from gourmet.runtime.decoding.engine import DECODER, ENCODER, Floats, Integers, Likeliest, Shape
from gourmet.runtime.openvino_network import OpenVinoNetwork


class OpenVinoEngine:
    """Fulfils gourmet.runtime.decoding.engine.Engine."""

    def __init__(self, folder: Path, threads: int) -> None:
        """The graphs in `folder`."""
        self._encoder, self._decoder = (
            OpenVinoNetwork(folder / name, threads, batched=False) for name in (ENCODER, DECODER)
        )
        given = {each.name: each for each in onnx.load(folder / DECODER).graph.input}
        dims = [dim.dim_value for dim in given["cache"].type.tensor_type.shape.dim]
        self.shape = Shape(dims[1], dims[3], dims[5])

    def encode(self, ids: Integers, mask: npt.NDArray[np.int32]) -> Floats:
        (memory,) = self._encoder.run(["memory"], {"ids": ids, "mask": mask})
        return memory.copy()  # the next answer is written where this one lies

    def step(
        self,
        tokens: Integers,
        lengths: Integers,
        cache: Floats,
        memory: Floats,
        mask: npt.NDArray[np.int32],
    ) -> Likeliest:
        given: dict[str, Any] = {
            "token": tokens[:, None],
            "length": lengths[:, None],
            "cache": cache,
            "memory": memory,
            "mask": mask,
        }
        return Likeliest(*self._decoder.run(["tokens", "scores", "added"], given))


def compress(plain: Path, path: Path) -> None:
    """The weights of products in eight bits, a scale for each column: the form that OpenVINO computes in."""
    model = onnx.load(plain)
    graph: Any = model.graph
    known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]].T
    nodes = []
    for node in graph.node:
        if node.op_type == "MatMul" and (weights := known.get(node.input[1])) is not None:
            scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
            stored = np.round(weights / scale).astype(np.int8)
            names = [f"{node.name}/{what}" for what in ("int8", "scale", "zero")]
            values = (stored, scale.astype(np.float32), np.zeros(len(scale), np.int8))
            graph.initializer.extend(map(numpy_helper.from_array, values, names))
            nodes.append(helper.make_node("DequantizeLinear", names, [f"{node.name}/weights"], axis=1))
            node.input[1] = f"{node.name}/weights"
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
