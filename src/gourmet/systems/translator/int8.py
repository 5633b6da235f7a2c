"""Weights of eight bits, row by row: a graph whose answer to a row depends on no other row.

ONNX Runtime's own dynamic quantization has one scale for all that goes into a product, so that a sentence's
words depend on the sentences beside it. Here every row of it has its own, in standard operators, which
every ONNX Runtime has; weights have one for each column, and embeddings one for each word.

Two things make the words those of the network. The weights that training keeps are `rounded` to what eight
bits hold exactly. And what goes through the products is taken twice, as its eight coarse and its eight fine
bits, side by side in one product: with the coarse alone one sentence in ten ends up with another word. ONNX
Runtime's `MatMulNBits` keeps rows apart too and is faster, but takes the coarse bits only: 475 of 500
sentences kept their words, where these keep 499.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

_LARGEST: Final = 127.0
# Activations are unsigned, which is what processors have fast products for; this stands for nothing.
_MIDDLE: Final = 128
# What the coarse bits leave over is at most a half.
_FINE: Final = 2 * _LARGEST
# Of values with less than this, which are all zero, any scale will do.
_SMALLEST: Final = 1e-12
# Embeddings of places, which are computed, few, and not `rounded`: here, and as transformers calls them.
_PLACES: Final = (".places.weight", ".embed_positions.weight")
_CONSTANTS: Final = {
    "int8_largest": np.array(_LARGEST, np.float32),
    "int8_fine": np.array(_FINE, np.float32),
    "int8_middle": np.array(_MIDDLE, np.float32),
    "int8_smallest": np.array(_SMALLEST, np.float32),
    "int8_zero_row": np.array(_MIDDLE, np.uint8),
    "int8_zero_weight": np.array(0, np.int8),
}

Weights = npt.NDArray[np.float32]


def quantize(plain: Path, path: Path) -> None:
    """Write the graph of `plain` with the constant weights of its products and embeddings in eight bits."""
    model = onnx.load(plain)
    _Quantizer(model.graph).run()
    onnx.save(model, path)


def rounded(network: nn.Module) -> nn.Module:
    """A copy whose weights are those that eight bits hold exactly."""
    found = copy.deepcopy(network)
    with torch.no_grad():
        for part in found.modules():
            if isinstance(part, nn.Linear | nn.Embedding) and part.weight.requires_grad:
                largest = part.weight.abs().amax(dim=1, keepdim=True)
                scale = largest.clamp(min=_SMALLEST) / _LARGEST
                part.weight.copy_((part.weight / scale).round() * scale)
    return found


class _Quantizer:
    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._constants: dict[str, Weights] = {}
        self._rows: dict[str, str] = {}  # of a tensor, what the names of its quantized rows begin with
        self._stored: dict[str, tuple[str, str]] = {}

    def run(self) -> None:
        self._constants = dict(_constants(self._graph))
        nodes = list(self._graph.node)
        del self._graph.node[:]
        for node in nodes:
            if node.op_type == "MatMul" and self._is_weight(node.input[1]):
                self._graph.node.extend(self._product(node))
            elif node.op_type == "Gather" and self._is_words(node.input[0]):
                self._graph.node.extend(self._embedding(node))
            else:
                self._graph.node.append(node)
        self._graph.initializer.extend(
            numpy_helper.from_array(value, name) for name, value in _CONSTANTS.items()
        )
        _drop_unused(self._graph)

    def _is_weight(self, name: str) -> bool:
        return name in self._constants and self._constants[name].ndim == 2

    def _is_words(self, name: str) -> bool:
        return self._is_weight(name) and not name.endswith(_PLACES)

    def _product(self, node: Any) -> list[Any]:
        given, weights = node.input
        made = [] if given in self._rows else self._quantized_rows(given)
        rows, (stored, scale) = self._rows[given], self._store(weights, axis=0)
        name = f"{node.name}/int8"
        return [
            *made,
            helper.make_node(
                "MatMulInteger", [f"{rows}/int8", stored, "int8_zero_row", "int8_zero_weight"], [name]
            ),
            helper.make_node("Cast", [name], [f"{name}/real"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Split", [f"{name}/real"], [f"{name}/coarse", f"{name}/fine"], axis=0),
            helper.make_node("Div", [f"{name}/fine", "int8_fine"], [f"{name}/finer"]),
            helper.make_node("Add", [f"{name}/coarse", f"{name}/finer"], [f"{name}/both"]),
            helper.make_node("Mul", [f"{name}/both", scale], [f"{name}/columns"]),
            helper.make_node("Mul", [f"{name}/columns", f"{rows}/scale"], [node.output[0]]),
        ]

    def _quantized_rows(self, given: str) -> list[Any]:
        self._rows[given] = rows = f"{given}/rows"
        steps: Sequence[tuple[str, list[str], str, dict[str, Any]]] = (
            ("Abs", [given], "abs", {}),
            ("ReduceMax", [f"{rows}/abs"], "most", {"axes": [-1], "keepdims": 1}),
            ("Max", [f"{rows}/most", "int8_smallest"], "safe", {}),
            ("Div", [f"{rows}/safe", "int8_largest"], "scale", {}),
            ("Div", [given, f"{rows}/scale"], "scaled", {}),
            ("Round", [f"{rows}/scaled"], "coarse", {}),
            ("Sub", [f"{rows}/scaled", f"{rows}/coarse"], "rest", {}),
            ("Mul", [f"{rows}/rest", "int8_fine"], "larger", {}),
            ("Round", [f"{rows}/larger"], "fine", {}),
            ("Concat", [f"{rows}/coarse", f"{rows}/fine"], "both", {"axis": 0}),
            ("Add", [f"{rows}/both", "int8_middle"], "moved", {}),
            ("Cast", [f"{rows}/moved"], "int8", {"to": onnx.TensorProto.UINT8}),
        )
        return [helper.make_node(kind, inputs, [f"{rows}/{to}"], **more) for kind, inputs, to, more in steps]

    def _embedding(self, node: Any) -> list[Any]:
        weights, ids = node.input
        stored, scale = self._store(weights, axis=1)
        name = f"{node.name}/int8"
        return [
            helper.make_node("Gather", [stored, ids], [name]),
            helper.make_node("Gather", [scale, ids], [f"{name}/scale"]),
            helper.make_node("Cast", [name], [f"{name}/real"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}/real", f"{name}/scale"], [node.output[0]]),
        ]

    def _store(self, name: str, axis: int) -> tuple[str, str]:
        """The weights in eight bits, and their scales: of the columns (axis 0), or of the rows (1)."""
        key = f"{name}/int8/{axis}"
        if key not in self._stored:
            weights = self._constants[name]
            scale = np.maximum(np.abs(weights).max(axis=axis, keepdims=axis == 1), _SMALLEST) / _LARGEST
            stored = np.round(weights / scale).astype(np.int8)
            self._stored[key] = (key, f"{key}/scale")
            self._graph.initializer.extend(
                numpy_helper.from_array(value, at)
                for value, at in ((stored, key), (scale.astype(np.float32), f"{key}/scale"))
            )
        return self._stored[key]


def _constants(graph: Any) -> Iterator[tuple[str, Weights]]:
    """Every constant by its name, those that are transposed first as well."""
    known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    yield from known.items()
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            known[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            yield node.output[0], known[node.output[0]]
        elif node.op_type == "Transpose" and node.input[0] in known and known[node.input[0]].ndim == 2:
            yield node.output[0], np.ascontiguousarray(known[node.input[0]].T)


def _drop_unused(graph: Any) -> None:
    """What only the plain weights were for."""
    used = {each.name for each in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used & set(node.output):
            used |= set(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    left = [each for each in graph.initializer if each.name in used]
    del graph.initializer[:]
    graph.initializer.extend(left)
