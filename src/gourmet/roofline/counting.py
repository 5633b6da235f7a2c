"""Count an ONNX file's layers: operations, and bytes read, written and of weights.

A layer is a node together with what runtimes compute on its way out (an activation, the quantization
of its result): values between those are never stored, and quantized tensors count with their small
element type. All is counted for one row; weights do not grow with the batch, the rest does.

operations.toml has what one word says of a type; a multiplication and an addition count as two. What is
not known counts as none, and is named: a guess would be worse than a gap that one sees.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx

from gourmet.errors import GourmetError
from gourmet.runtime.reading import in_short

Shape = tuple[int, ...]
# The node, the shapes of its inputs (empty where one is left out) and of its outputs.
_Count = Callable[[Any, Sequence[Shape], Sequence[Shape]], float]

_TYPES: Final = tomllib.loads(Path(__file__).with_name("operations.toml").read_text())
_FREE, _PARTIAL_READS, _ON_THE_WAY_OUT, _INTEGER_LAYERS, _FLOAT_LAYERS = (
    frozenset(_TYPES[kind])
    for kind in ("free", "partial_reads", "on_the_way_out", "integer_layers", "float_layers")
)
_QUANTIZE: Final = "QuantizeLinear"
_DEQUANTIZE: Final = "DequantizeLinear"


@dataclass(frozen=True)
class LayerCost:
    """One layer, for one row."""

    name: str
    op: str
    operations: float
    weight_bytes: float
    moved_bytes: float  # what it reads and writes, weights apart
    quantized: bool


@dataclass(frozen=True)
class Counted:
    """A model's layers; `batches` is True if it takes several rows at a time."""

    layers: tuple[LayerCost, ...]
    unknown: tuple[str, ...]
    batches: bool

    @property
    def totals(self) -> dict[str, float]:
        kinds = ("operations", "weight_bytes", "moved_bytes")
        return {kind: sum(getattr(layer, kind) for layer in self.layers) for kind in kinds}


def count(path: Path, dims: Mapping[str, int] | None = None) -> Counted:
    """Count the model in `path`; `dims` gives sizes to free dimensions other than the batch."""
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except FileNotFoundError as exc:
        raise GourmetError(f"no ONNX file found at {path}: name a .onnx file or a served model") from exc
    except Exception as exc:  # protobuf raises its own kinds for a file that is none
        raise GourmetError(f"{path} is not a valid ONNX file: {in_short(exc)}") from exc
    if not model.graph.node:
        raise GourmetError(f"{path} is not a valid ONNX model: it holds no nodes")
    batches = _fix_sizes(model.graph, dims or {}, path)
    sized = _with_shapes(model, path)
    try:
        graph = _SizedGraph(sized)
        layers = tuple(graph.layers())
    except Exception as exc:  # of types and attributes that onnx's own functions do not know
        raise GourmetError(f"{path} cannot be read as ONNX: {in_short(exc)}") from exc
    return Counted(layers, tuple(f"{op} ({graph.unknown[op]}×)" for op in sorted(graph.unknown)), batches)


def _fix_sizes(graph: Any, dims: Mapping[str, int], path: Path) -> bool:
    """Give every free size of the inputs a number: 1 to the batch, the others from `dims`."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [tensor for tensor in graph.input if tensor.name not in weights]
    free, batches = [], bool(inputs)
    for tensor in inputs:
        for position, dim in enumerate(tensor.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                batches = batches and position > 0
            elif position == 0:
                dim.dim_value = 1
            elif dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
            else:
                free.append(dim.dim_param or f"number {position} of {tensor.name}")
    if free:
        names = ", ".join(dict.fromkeys(free))
        raise GourmetError(f"{path} leaves sizes open ({names}): say them with --dim {free[0]}=NUMBER")
    return batches


def _with_shapes(model: Any, path: Path) -> Any:
    """Return the graph with the shapes inferred from its inputs."""
    # What was inferred before belongs to the free sizes.
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        # Strict is about contradictions; what cannot be inferred stays open either way.
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    except Exception as exc:
        raise GourmetError(
            f"the shapes of {path} contradict each other: {in_short(exc)} (are --dim right?)"
        ) from exc


class _SizedGraph:
    """A graph with the known shapes and bytes of its tensors."""

    def __init__(self, graph: Any) -> None:
        self.nodes = list(graph.node)
        self.constants = {value.name for value in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.shapes: dict[str, Shape] = {}
        self.bytes: dict[str, float] = {}
        self.users: dict[str, list[Any]] = {}
        self.sources: dict[str, str] = {}  # a tensor -> the one whose bytes are really there
        self.unknown: Counter[str] = Counter()
        for value in graph.initializer:
            self._size(value.name, tuple(value.dims), value.data_type)
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                self._size(value.name, tuple(dim.dim_value for dim in tensor.shape.dim), tensor.elem_type)
        for node in self.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def _size(self, name: str, shape: Shape, element_type: int) -> None:
        self.shapes[name] = shape
        self.bytes[name] = math.prod(shape) * onnx.helper.tensor_dtype_to_np_dtype(element_type).itemsize

    def layers(self) -> Iterator[LayerCost]:
        absorbed: set[int] = set()
        for node in self.nodes:
            if id(node) in absorbed:
                continue
            if all(name in self.constants or not name for name in node.input):
                # Computed once, when the model is loaded: a weight, in the form in which it is stored.
                self.constants.update(node.output)
                if node.op_type == _DEQUANTIZE:
                    self.sources[node.output[0]] = node.input[0]
            elif node.op_type == _DEQUANTIZE and all(
                user.op_type in _COUNTS and user.op_type not in _FREE
                for user in self.users.get(node.output[0], ())
            ):
                self.sources[node.output[0]] = node.input[0]
            elif node.op_type not in _FREE:
                chain = [node, *self._on_the_way_out(node)]
                absorbed.update(map(id, chain))
                yield self._layer(chain)

    def _on_the_way_out(self, node: Any) -> Iterator[Any]:
        """Return the nodes that a runtime fuses with `node`, in their order."""
        while node.op_type != _QUANTIZE and len(node.output) == 1:
            # Whatever is computed is stored quantized where that is all it is used for.
            works = node.op_type in _FLOAT_LAYERS | _INTEGER_LAYERS | _ON_THE_WAY_OUT
            joins = {_QUANTIZE} | (_ON_THE_WAY_OUT if works else set())
            output, users = node.output[0], self.users.get(node.output[0], [])
            if len(users) != 1 or output in self.outputs or users[0].input[0] != output:
                return
            node = users[0]
            if node.op_type not in joins:
                return
            yield node

    def _layer(self, chain: list[Any]) -> LayerCost:
        first = chain[0]
        inside = {name for node in chain[:-1] for name in node.output}
        weights = moved = 0.0
        quantized = first.op_type in _INTEGER_LAYERS
        for node in chain:
            for position, name in enumerate(node.input):
                stored = self.sources.get(name, name)
                if not name or name in inside or stored not in self.shapes:
                    continue
                if name in self.constants:
                    weights += self.bytes[stored]
                elif node.op_type in _PARTIAL_READS and position == 0:
                    moved += sum(self.bytes.get(out, 0.0) for out in node.output)
                else:
                    moved += self.bytes[stored]
                quantized |= node is first and stored != name and first.op_type in _FLOAT_LAYERS
        moved += sum(self.bytes.get(name, 0.0) for name in chain[-1].output)
        name = (first.name or first.output[0]).strip("/")
        operations = sum(map(self._operations, chain))
        return LayerCost(name, first.op_type, operations, weights, moved, quantized)

    def _operations(self, node: Any) -> float:
        """Count the operations of a node; add a note if its type or shape is not known."""
        if node.op_type not in _COUNTS:
            self.unknown[node.op_type] += 1
            return 0.0
        if not all(name in self.shapes for name in (*node.input, *node.output) if name):
            self.unknown[f"{node.op_type} of unknown size"] += 1
            return 0.0
        ins = [self.shapes[name] if name else () for name in node.input]
        return float(_COUNTS[node.op_type](node, ins, [self.shapes[name] for name in node.output if name]))


def _each(of: int) -> _Count:
    """Count a fixed number of operations for each element of the output."""
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
    kernel: Sequence[int] = next(
        attribute.ints for attribute in node.attribute if attribute.name == "kernel_shape"
    )
    return math.prod(outs[0]) * math.prod(kernel)


_COUNTS: Final[dict[str, _Count]] = {
    **dict.fromkeys(_TYPES["moves"] + _TYPES["free"], _each(0)),
    **{name: _each(int(of)) for of, names in _TYPES["each"].items() for name in names},
    **dict.fromkeys(_TYPES["reductions"], _reduction),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "Gemm": _gemm,
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
}
