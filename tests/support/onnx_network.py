"""ONNX files as other people's exporters write them, of a network that is as small as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, BYTE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8
WEIGHTS = np.array([[2.0, -1.0, 0.5], [-1.5, 1.0, 0.0], [0.0, 0.5, -1.0]], np.float32)


def network(
    given: Sequence[Any] = ("n", 3, 8, 8),
    kind: int = FLOAT,
    scores: Sequence[Any] = ("n", 3),
    *,
    head: npt.NDArray[np.float32] = WEIGHTS,
    last: Sequence[onnx.NodeProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    """A linear classifier of the mean colour; `last` comes after its logits, which are called z then."""
    value, node = helper.make_tensor_value_info, helper.make_node
    axes = [1, 2] if given[-1] in (1, 3) and given[1] not in (1, 3) else [2, 3]
    channels = given[3] if axes == [1, 2] else given[1]
    head = head[: channels if isinstance(channels, int) else 3]
    answer = HALF if kind == HALF else FLOAT
    head = head.astype(np.float16) if kind == HALF else head / 255 if kind == BYTE else head
    to_float = [node("Cast", ["x"], ["c"], to=FLOAT)] if kind == BYTE else [node("Identity", ["x"], ["c"])]
    nodes = [
        *to_float,
        node("ReduceMean", ["c"], ["m"], axes=axes, keepdims=0),
        node("MatMul", ["m", "w"], ["z" if last else "y"]),
        *last,
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", kind, given)],
        [value("y", answer, scores)],
        [numpy_helper.from_array(head, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
