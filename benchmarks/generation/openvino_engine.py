"""OpenVINO running the graphs of the served loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gourmet.runtime.decoding.engine import Run
from gourmet.runtime.openvino_network import OpenVinoNetwork


def graph(path: Path, threads: int) -> Run:
    network = OpenVinoNetwork(path, threads, batched=False)
    # Copies, since the next answer is written where this one lies.
    return lambda outputs, inputs: [each.copy() for each in network.run(outputs, inputs)]


def compress(plain: Path, path: Path) -> None:
    """The weights of products in eight bits, a scale for each column: the form that OpenVINO computes in."""
    model = onnx.load(plain)
    graph: Any = model.graph
    known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]].T
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type == "MatMul" and (weights := known.get(node.input[1])) is not None:
            scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
            stored = np.round(weights / scale).astype(np.int8)
            names = [f"{node.name}/{what}" for what in ("int8", "scale", "zero")]
            values = (stored, scale.astype(np.float32), np.zeros(len(scale), np.int8))
            graph.initializer.extend(map(numpy_helper.from_array, values, names))
            node.input[1] = f"{node.name}/weights"
            graph.node.append(helper.make_node("DequantizeLinear", names, [node.input[1]], axis=1))
        graph.node.append(node)
    onnx.save(model, path)
