"""How many operations a node takes, by its type; a multiplication and an addition count as two.

What is not known counts as none, and is named by the caller: a guess would be worse than a gap that one sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

Shape = tuple[int, ...]
# The node, the shapes of its inputs (empty where one is left out) and of its outputs.
Count = Callable[[Any, Sequence[Shape], Sequence[Shape]], float]


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


def _each(of: float, types: Iterable[str]) -> dict[str, Count]:
    """So many operations for each element of the output."""
    return dict.fromkeys(types, lambda node, ins, outs: of * math.prod(outs[0]))


def _reduction(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    return math.prod(ins[0])


def _convolution(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    # [filters, channels of a group, *kernel]; QLinearConv has scale and zero point before it.
    weight, bias = (ins[3], 8) if node.op_type == "QLinearConv" else (ins[1], 2)
    biased = len(ins) > bias and node.op_type != "ConvInteger"
    return math.prod(outs[0]) * (2 * math.prod(weight[1:]) + biased)


def _transposed_convolution(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    # Every element of the input is spread over a kernel of each filter of its group.
    return 2 * math.prod(ins[0]) * math.prod(ins[1][1:]) + math.prod(outs[0]) * (len(ins) > 2)


def _product(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    return 2 * math.prod(outs[0]) * ins[0][-1]


def _gemm(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    return 2 * math.prod(ins[0]) * outs[0][1] + math.prod(outs[0]) * (len(ins) > 2)


def _pool(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    kernel: Sequence[int] = next(one.ints for one in node.attribute if one.name == "kernel_shape")
    return math.prod(outs[0]) * math.prod(kernel)


def _recurrent(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    # Each step multiplies the input with W and the state with R, in every direction.
    return 2 * math.prod(ins[0][:2]) * (math.prod(ins[1]) + math.prod(ins[2]))


COUNTS: Final[dict[str, Count]] = {
    **_each(0, MOVES | FREE),
    **_each(
        1,
        _types(
            "Abs Add And BitShift Ceil Clip Cos Div Elu Equal Erf Exp Floor Greater GreaterOrEqual "
            "HardSigmoid LeakyRelu Less LessOrEqual Log Max Min Mod Mul Neg Not Or PRelu Pow Reciprocal "
            "Relu Round Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Tanh Xor"
        ),
    ),
    # Scale and shift; round and clip too where the value is quantized.
    **_each(2, ("BatchNormalization", DEQUANTIZE, "HardSwish")),
    **_each(4, ("DynamicQuantizeLinear", QUANTIZE, "Gelu")),
    # Largest, difference, exponential, sum, quotient.
    **_each(5, ("LogSoftmax", "Softmax")),
    # Mean, difference, square, mean, root and quotient, scale, shift.
    **_each(8, ("GroupNormalization", "InstanceNormalization", "LayerNormalization")),
    **dict.fromkeys(_types("ArgMax ArgMin CumSum GlobalAveragePool GlobalMaxPool TopK"), _reduction),
    **dict.fromkeys(_types("ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean"), _reduction),
    **dict.fromkeys(_types("ReduceMin ReduceProd ReduceSum ReduceSumSquare"), _reduction),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "Gemm": _gemm,
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
