"""How many operations a node takes, by its type; a multiplication and an addition count as two.

operations.toml has what one word says of a type. What is not known counts as none, and is named by the
caller: a guess would be worse than a gap that one sees.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

Shape = tuple[int, ...]
# The node, the shapes of its inputs (empty where one is left out) and of its outputs.
Count = Callable[[Any, Sequence[Shape], Sequence[Shape]], float]

_TYPES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
FREE, PARTIAL_READS, ON_THE_WAY_OUT, INTEGER_LAYERS, FLOAT_LAYERS = (
    frozenset(_TYPES[kind])
    for kind in ("free", "partial_reads", "on_the_way_out", "integer_layers", "float_layers")
)
QUANTIZE: Final = "QuantizeLinear"
DEQUANTIZE: Final = "DequantizeLinear"


def _nothing(node: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> float:
    return 0.0


def _each(of: int) -> Count:
    """So many operations for each element of the output."""
    return lambda node, ins, outs: of * math.prod(outs[0])


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


COUNTS: Final[dict[str, Count]] = {
    **dict.fromkeys(_TYPES["moves"] + _TYPES["free"], _nothing),
    **{name: _each(int(of)) for of, names in _TYPES["each"].items() for name in names},
    **dict.fromkeys(_TYPES["reductions"], _reduction),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "Gemm": _gemm,
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
}
