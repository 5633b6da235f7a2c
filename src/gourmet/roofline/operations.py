"""How many operations a node takes, by its type; a multiplication and an addition count as two.

Ways to count register themselves for the types that they know. What is not known counts as none, and
is named by the caller: a guess would be worse than a gap that one sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

Shape = tuple[int, ...]
# The node, the shapes of its inputs (None where one is left out) and of its outputs.
Count = Callable[[Any, Sequence[Shape | None], Sequence[Shape]], float]

COUNTS: dict[str, Count] = {}


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


# They move bytes and compute nothing.
MOVES: Final = _types(
    "Cast Concat DepthToSpace Expand Gather GatherElements GatherND OneHot Pad Resize ScatterElements "
    "ScatterND Slice SpaceToDepth Split Tile Transpose Trilu Where"
)
# They read part of their first input: as much as they write.
PARTIAL_READS: Final = _types("Gather GatherElements GatherND Slice")
# The output is the input under another shape, or nothing but a shape: no byte moves.
FREE: Final = _types(
    "Constant ConstantOfShape Dropout Flatten Identity Range Reshape Shape Size Squeeze Unsqueeze"
)
# Runtimes compute them on the way out of the layer before, so that the value between is never stored.
ON_THE_WAY_OUT: Final = _types("BatchNormalization Clip HardSigmoid HardSwish LeakyRelu Relu Sigmoid Tanh")
QUANTIZE: Final = "QuantizeLinear"
DEQUANTIZE: Final = "DequantizeLinear"
INTEGER: Final = _types("ConvInteger MatMulInteger QLinearConv QLinearMatMul")
# The layers that do the work.
LAYERS: Final = _types("Conv ConvTranspose Gemm MatMul") | INTEGER


def counts(*types: str) -> Callable[[Count], Count]:
    def register(count: Count) -> Count:
        COUNTS.update(dict.fromkeys(types, count))
        return count

    return register


def _each(of: float, types: Iterable[str]) -> None:
    """So many operations for each element of the output."""
    counts(*types)(lambda node, ins, outs: of * math.prod(outs[0]))


_each(0, MOVES | FREE)
_each(
    1,
    _types(
        "Abs Add And BitShift Ceil Clip Cos Div Elu Equal Erf Exp Floor Greater GreaterOrEqual HardSigmoid "
        "LeakyRelu Less LessOrEqual Log Max Min Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Sigmoid "
        "Sign Sin Softplus Softsign Sqrt Sub Sum Tanh Xor"
    ),
)
# Scale and shift; round and clip too where the value is quantized.
_each(2, ("BatchNormalization", DEQUANTIZE, "HardSwish"))
_each(4, ("DynamicQuantizeLinear", QUANTIZE, "Gelu"))
# Largest, difference, exponential, sum, quotient.
_each(5, ("LogSoftmax", "Softmax"))
# Mean, difference, square, mean, root and quotient, scale, shift.
_each(8, ("GroupNormalization", "InstanceNormalization", "LayerNormalization"))


@counts(
    *_types("ArgMax ArgMin CumSum GlobalAveragePool GlobalMaxPool TopK"),
    *(f"Reduce{kind}" for kind in _types("L1 L2 LogSumExp Max Mean Min Prod Sum SumSquare")),
)
def _reduction(node: Any, ins: Sequence[Shape | None], outs: Sequence[Shape]) -> float:
    return math.prod(ins[0] or ())


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
