"""An ONNX file as a list of layers: what each computes, reads, writes, and what of it are weights.

A layer is a node together with what runtimes compute on its way out (an activation, the quantization
of its result): values between those are never stored, and quantized tensors count with their small
element type. All is counted for one row; weights do not grow with the batch, the rest does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import shape_inference

from gourmet.errors import GourmetError
from gourmet.roofline import operations as ops
from gourmet.roofline.operations import Shape


class CannotCount(GourmetError):
    """A file that is not a valid ONNX model, or one whose shapes stay open."""


@dataclass(frozen=True)
class Layer:
    """One layer, for one row."""

    name: str
    op: str
    operations: float
    weight_bytes: float
    moved_bytes: float  # what it reads and writes, weights apart
    quantized: bool


@dataclass(frozen=True)
class Counted:
    """A model by layers; `batches` says whether it takes more rows than one at a time."""

    layers: tuple[Layer, ...]
    unknown: tuple[str, ...]
    batches: bool

    @property
    def operations(self) -> float:
        return sum(layer.operations for layer in self.layers)

    @property
    def weight_bytes(self) -> float:
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def moved_bytes(self) -> float:
        return sum(layer.moved_bytes for layer in self.layers)


@dataclass
class _Graph:
    """A graph with the shape and element size of every tensor that is known."""

    nodes: list[Any]
    shapes: dict[str, Shape]
    sizes: dict[str, float]
    constants: set[str]
    outputs: set[str]
    users: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def bytes_of(self, name: str) -> float:
        return math.prod(self.shapes[name]) * self.sizes[name]

    def only_user(self, name: str) -> Any:
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.outputs else None


def count(path: Path, dims: Mapping[str, int] | None = None) -> Counted:
    """Count the model in `path`; `dims` gives sizes to free dimensions other than the batch."""
    graph, batches = _read(path, dims or {})
    unknown: dict[str, int] = {}
    layers = tuple(_layers(graph, unknown))
    named = tuple(f"{op} ({number}×)" for op, number in sorted(unknown.items()))
    return Counted(layers, named, batches)


def _read(path: Path, dims: Mapping[str, int]) -> tuple[_Graph, bool]:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError as exc:
        raise CannotCount(f"no ONNX file found at {path}: name a .onnx file or a served model") from exc
    except Exception as exc:  # protobuf raises its own kinds for a file that is none
        raise CannotCount(f"{path} is not a valid ONNX file: {str(exc).splitlines()[0]}") from exc
    if not model.graph.node:
        raise CannotCount(f"{path} is not a valid ONNX model: it holds no nodes")
    weights = {one.name: one for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in weights]
    batches = _fix(inputs, dims, path)
    # What was inferred before belongs to the free sizes.
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        # Strict is about contradictions; what cannot be inferred stays open either way.
        inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    except Exception as exc:
        raise CannotCount(
            f"the shapes of {path} contradict each other: {str(exc).splitlines()[0]} (are --dim right?)"
        ) from exc
    graph = _Graph(list(inferred.node), {}, {}, set(weights), {one.name for one in inferred.output})
    for name, one in weights.items():
        graph.shapes[name], graph.sizes[name] = tuple(one.dims), _size(one.data_type)
    for one in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = one.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            graph.shapes.setdefault(one.name, tuple(dim.dim_value for dim in tensor.shape.dim))
            graph.sizes.setdefault(one.name, _size(tensor.elem_type))
    return graph, batches


def _fix(inputs: list[Any], dims: Mapping[str, int], path: Path) -> bool:
    """Give every free size of the inputs a number: 1 to the batch, the others from `dims`."""
    free, batches = [], bool(inputs)
    for one in inputs:
        for place, dim in enumerate(one.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                batches = batches and place > 0
            elif place == 0:
                dim.dim_value = 1
            elif dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
            else:
                free.append(dim.dim_param or f"number {place} of {one.name}")
    if free:
        names = ", ".join(dict.fromkeys(free))
        raise CannotCount(
            f"{path} leaves sizes open ({names}): say them with --dim {free[0].replace(' ', '_')}=NUMBER"
        )
    return batches


def _size(element_type: int) -> float:
    """Bytes of an element; text has no size of its own."""
    if element_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0.0
    if element_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        return 0.5
    return float(onnx.helper.tensor_dtype_to_np_dtype(element_type).itemsize)


def _layers(graph: _Graph, unknown: dict[str, int]) -> Iterator[Layer]:
    absorbed: set[int] = set()
    sources: dict[str, str] = {}  # a tensor -> the one whose bytes are really there
    for node in graph.nodes:
        if id(node) in absorbed:
            continue
        if all(name in graph.constants or not name for name in node.input) and node.op_type != "Constant":
            # Computed once, when the model is loaded: a weight, in the form in which it is stored.
            for name in node.output:
                graph.constants.add(name)
                if node.op_type == ops.DEQUANTIZE:
                    sources[name] = node.input[0]
            continue
        if node.op_type == "Constant":
            graph.constants.update(node.output)
            continue
        if node.op_type in ops.FREE:
            continue
        if node.op_type == ops.DEQUANTIZE and all(
            user.op_type in ops.COUNTS and user.op_type not in ops.FREE
            for user in graph.users.get(node.output[0], ())
        ):
            sources[node.output[0]] = node.input[0]
            continue
        chain = [node, *_on_the_way_out(graph, node)]
        absorbed.update(id(one) for one in chain)
        yield _layer(graph, chain, sources, unknown)


def _on_the_way_out(graph: _Graph, node: Any) -> Iterator[Any]:
    """The nodes that a runtime computes together with `node`, one after another."""
    while len(node.output) == 1:
        user = graph.only_user(node.output[0])
        if user is None or user.input[0] != node.output[0] or user.op_type not in _joins(node):
            return
        yield user
        node = user


def _joins(node: Any) -> frozenset[str]:
    if node.op_type == ops.QUANTIZE:
        return frozenset()
    # Whatever is computed is stored quantized where that is all it is used for.
    quantized = frozenset({ops.QUANTIZE})
    return quantized | ops.ON_THE_WAY_OUT if node.op_type in ops.LAYERS | ops.ON_THE_WAY_OUT else quantized


def _layer(graph: _Graph, chain: list[Any], sources: Mapping[str, str], unknown: dict[str, int]) -> Layer:
    first, last = chain[0], chain[-1]
    operations = 0.0
    for node in chain:
        if (known := _operations(graph, node)) is None:
            named = node.op_type if node.op_type not in ops.COUNTS else f"{node.op_type} of unknown size"
            unknown[named] = unknown.get(named, 0) + 1
        else:
            operations += known
    inside = {name for node in chain[:-1] for name in node.output}
    weights = moved = 0.0
    quantized = False
    for node in chain:
        for place, name in enumerate(node.input):
            stored = sources.get(name, name)
            if not name or name in inside or stored not in graph.shapes:
                continue
            if name in graph.constants:
                weights += graph.bytes_of(stored)
            elif node.op_type in ops.PARTIAL_READS and place == 0:
                moved += sum(graph.bytes_of(out) for out in node.output if out in graph.shapes)
            else:
                moved += graph.bytes_of(stored)
            quantized = quantized or (node is first and stored != name)
    moved += sum(graph.bytes_of(name) for name in last.output if name in graph.shapes)
    name = (first.name or next(iter(first.output), "")).strip("/")
    quantized = first.op_type in ops.INTEGER or (quantized and first.op_type in ops.LAYERS)
    return Layer(name, _described(graph, first), operations, weights, moved, quantized)


def _described(graph: _Graph, node: Any) -> str:
    """The type, and of a convolution its kernel: one by channel moves as much and computes far less."""
    weight = graph.shapes.get(node.input[1]) if node.op_type == "Conv" else None
    if not weight:
        return str(node.op_type)
    kernel = "×".join(str(size) for size in weight[2:])
    by_channel = weight[1] == 1 and ops.attribute(node, "group", 1) > 1
    return f"Conv {kernel}" + (" by channel" if by_channel else "")


def _operations(graph: _Graph, node: Any) -> float | None:
    """None for a type that is not counted here, or where a shape could not be inferred."""
    names = [name for name in (*node.input, *node.output) if name]
    if node.op_type not in ops.COUNTS or not all(name in graph.shapes for name in names):
        return None
    ins = [graph.shapes[name] if name else None for name in node.input]
    return float(ops.COUNTS[node.op_type](node, ins, [graph.shapes[name] for name in node.output if name]))
