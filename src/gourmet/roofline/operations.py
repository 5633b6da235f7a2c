"""How many operations a node takes, by its type; a multiplication and an addition count as two.

Ways to count register themselves for the types that they know. What nobody knows counts as none, and
is named by the caller: a guess would be worse than a gap that one sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

Shape = tuple[int, ...]
# The node, the shapes of its inputs (None where one is left out) and of its outputs.
Count = Callable[[Any, Sequence[Shape | None], Sequence[Shape]], float]

COUNTS: dict[str, Count] = {}

# They move bytes and compute nothing.
MOVES: Final = frozenset(
    [
        "Cast",
        "Concat",
        "DepthToSpace",
        "Expand",
        "Gather",
        "GatherElements",
        "GatherND",
        "OneHot",
        "Pad",
        "Resize",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Tile",
        "Transpose",
        "Trilu",
        "Where",
    ]
)
# They read part of their first input: as much as they write.
PARTIAL_READS: Final = frozenset(["Gather", "GatherElements", "GatherND", "Slice"])
# The output is the input under another shape, or nothing but a shape: no byte moves.
FREE: Final = frozenset(
    [
        "Constant",
        "ConstantOfShape",
        "Dropout",
        "Flatten",
        "Identity",
        "Range",
        "Reshape",
        "Shape",
        "Size",
        "Squeeze",
        "Unsqueeze",
    ]
)
# Runtimes compute them on the way out of the layer before, so that the value between is never stored.
ON_THE_WAY_OUT: Final = frozenset(
    ["BatchNormalization", "Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"]
)
QUANTIZE: Final = "QuantizeLinear"
DEQUANTIZE: Final = "DequantizeLinear"
# The layers that do the work.
LAYERS: Final = frozenset(
    [
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
    ]
)


def counts(*types: str) -> Callable[[Count], Count]:
    """Register a way to count for these types."""

    def register(count: Count) -> Count:
        COUNTS.update(dict.fromkeys(types, count))
        return count

    return register


def _each(of: float) -> Count:
    """So many operations for each element of the output."""
    return lambda node, ins, outs: of * math.prod(outs[0])


def _each_in(of: float) -> Count:
    """So many operations for each element of the first input."""
    return lambda node, ins, outs: of * math.prod(ins[0] or ())


for _type in [
    "Abs",
    "Add",
    "And",
    "BitShift",
    "Ceil",
    "Clip",
    "Cos",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Tanh",
    "Xor",
]:
    COUNTS[_type] = _each(1)
# Scale and shift; round and clip too where the value is quantized.
COUNTS.update(dict.fromkeys(("BatchNormalization", DEQUANTIZE, "HardSwish"), _each(2)))
COUNTS.update(dict.fromkeys(("DynamicQuantizeLinear", QUANTIZE, "Gelu"), _each(4)))
# Largest, difference, exponential, sum, quotient.
COUNTS.update(dict.fromkeys(("LogSoftmax", "Softmax"), _each(5)))
# Mean, difference, square, mean, root and quotient, scale, shift.
COUNTS.update(dict.fromkeys(("GroupNormalization", "InstanceNormalization", "LayerNormalization"), _each(8)))
for _type in [
    "ArgMax",
    "ArgMin",
    "CumSum",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "TopK",
]:
    COUNTS[_type] = _each_in(1)
COUNTS.update(dict.fromkeys((*MOVES, *FREE), _each(0)))


@counts("Conv", "ConvInteger", "QLinearConv")
def _convolution(node: Any, ins: Sequence[Shape | None], outs: Sequence[Shape]) -> float:
    # [filters, channels of a group, *kernel]; QLinearConv has scale and zero point before it.
    weight = ins[3] if node.op_type == "QLinearConv" else ins[1]
    bias = {"Conv": 2, "QLinearConv": 8}.get(node.op_type, len(ins))
    assert weight
    each = 2 * math.prod(weight[1:]) + (len(ins) > bias and ins[bias] is not None)
    return math.prod(outs[0]) * each


@counts("ConvTranspose")
def _transposed_convolution(node: Any, ins: Sequence[Shape | None], outs: Sequence[Shape]) -> float:
    given, weight = ins[0], ins[1]
    assert given
    assert weight
    # Every element of the input is spread over a kernel of each filter of its group.
    bias = math.prod(outs[0]) if len(ins) > 2 and ins[2] is not None else 0
    return 2 * math.prod(given) * math.prod(weight[1:]) + bias


@counts("MatMul", "MatMulInteger", "QLinearMatMul")
def _product(node: Any, ins: Sequence[Shape | None], outs: Sequence[Shape]) -> float:
    assert ins[0]
    return 2 * math.prod(outs[0]) * ins[0][-1]


@counts("Gemm")
def _gemm(node: Any, ins: Sequence[Shape | None], outs: Sequence[Shape]) -> float:
    assert ins[0]
    inner = ins[0][0] if attribute(node, "transA", 0) else ins[0][1]
    bias = len(ins) > 2 and ins[2] is not None
    return math.prod(outs[0]) * (2 * inner + bias)


@counts("AveragePool", "MaxPool", "LpPool")
def _pool(node: Any, ins: Sequence[Shape | None], outs: Sequence[Shape]) -> float:
    return float(math.prod(outs[0]) * math.prod(attribute(node, "kernel_shape", ())))


@counts("LSTM", "GRU", "RNN")
def _recurrent(node: Any, ins: Sequence[Shape | None], outs: Sequence[Shape]) -> float:
    steps, w, r = ins[0], ins[1], ins[2]
    assert steps
    assert w
    assert r
    # Each step multiplies the input with W and the state with R, in every direction.
    return 2.0 * steps[0] * steps[1] * (math.prod(w) + math.prod(r))


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute of a node that is a number or a list of numbers."""
    for one in node.attribute:
        if one.name == name:
            return tuple(one.ints) or one.i
    return default
