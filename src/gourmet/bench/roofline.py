"""Count an ONNX file's layers, and compare them with the compute and memory rates of a machine.

A layer is a node together with what runtimes compute on its way out (an activation, the quantization of its
result): values between those are never stored, and quantized tensors count with their small element type.
All is counted for one row; weights do not grow with the batch, the rest does.

A multiplication and an addition count as two. What is not known counts as none, and is named.
"""

from __future__ import annotations

import math
import time
import timeit
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.parser

from gourmet.errors import GourmetError
from gourmet.served.instances import available_cpus
from gourmet.served.reading import error_summary

# Large enough that a product is not about its memory, small enough to be repeated in a second or two.
_EDGE: Final = 1024
_COPY_MB: Final = 64
_RUNS: Final = 30


@dataclass(frozen=True)
class Machine:
    """Operations and bytes a second, at best."""

    name: str
    fp32: float
    int8: float
    bandwidth: float
    source: str

    def peak(self, quantized: bool) -> float:
        return self.int8 if quantized else self.fp32

    def ridge(self, quantized: bool = False) -> float:
        """The operations per byte above which computing is the limit, not memory."""
        return self.peak(quantized) / self.bandwidth


# Dense figures of NVIDIA's data sheets: fp32 of the CUDA cores, int8 of the tensor cores.
GPUS: Final = {
    "t4": Machine("T4", 8.1e12, 130e12, 320e9, "NVIDIA T4 data sheet, 2019"),
    "a100": Machine("A100 80 GB SXM", 19.5e12, 624e12, 2039e9, "NVIDIA A100 80GB data sheet, 2021"),
    "l4": Machine("L4", 30.3e12, 242.5e12, 300e9, "NVIDIA L4 data sheet, 2023"),
    "h100": Machine("H100 SXM", 67e12, 1979e12, 3350e9, "NVIDIA H100 data sheet, 2023"),
}


def measured_machine() -> Machine:
    """Measure this machine by matrix products in ONNX Runtime, and by copies.

    Products are the best of several runs by one thread's own time, times the CPUs: what else runs takes
    nothing away. CPUs share the memory, so all of them copy at once.
    """
    cpus, work = available_cpus(), 2 * _EDGE**3
    return Machine(
        f"this machine, {cpus} CPU{'s' if cpus > 1 else ''}",
        cpus * _rate(work, _product("MatMul", ("float", "float", "float"))),
        cpus * _rate(work, _product("MatMulInteger", ("uint8", "int8", "int32"))),
        _copy_rate(cpus),
        f"measured: best product of {_EDGE}×{_EDGE} matrices on a thread of ONNX Runtime, times {cpus}; "
        f"{cpus} copies of {_COPY_MB} MB at once; the best of {_RUNS} runs",
    )


def _product(op: str, types: tuple[str, str, str]) -> Callable[[], Any]:
    """Return a run of a matrix product on one thread; `types` are ONNX types of factors and result."""
    import onnxruntime as ort

    a, b, c = (f"{kind}[{_EDGE}, {_EDGE}]" for kind in types)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> product ({a} a, {b} b) => ({c} c) {{ c = {op}(a, b) }}'
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(0).integers(0, 100, (_EDGE, _EDGE))
    types_of = {"float": np.float32, "int8": np.int8, "uint8": np.uint8}
    feeds = {name: values.astype(types_of[kind]) for name, kind in zip("ab", types, strict=False)}
    return lambda: session.run(None, feeds)


def _copy_rate(cpus: int) -> float:
    """Return the bytes that all CPUs read and write together, a second."""
    buffers = [(np.zeros(_COPY_MB << 20, np.uint8), np.ones(_COPY_MB << 20, np.uint8)) for _ in range(cpus)]
    with ThreadPoolExecutor(cpus) as threads:  # numpy copies without holding the interpreter
        seconds = timeit.repeat(
            lambda: list(threads.map(lambda pair: np.copyto(*pair), buffers)), number=1, repeat=_RUNS
        )
    return cpus * (2 * _COPY_MB << 20) / min(seconds)


def _rate(amount: float, run: Callable[[], Any]) -> float:
    """Return the best rate of several runs, a second."""
    return amount / min(timeit.repeat(run, timer=time.thread_time, number=1, repeat=_RUNS))


Shape = tuple[int, ...]
# The node, the shapes of its inputs (empty where one is left out), and the shape of its first output.
_Count = Callable[[Any, Sequence[Shape], Shape], float]

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_PRODUCTS: Final = {"Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger"}
_TYPES: Final = {
    # Another shape of the input, or nothing but a shape: no byte moves.
    "free": "Constant ConstantOfShape Dropout Flatten Identity Range Reshape Shape Size Squeeze Unsqueeze",
    # They read as much of their first input as they write.
    "partial reads": "Gather GatherElements GatherND Slice",
    # Bytes move, and nothing is computed.
    "moves": "Cast Concat DepthToSpace Expand Gather GatherElements GatherND OneHot Pad Resize "
    "ScatterElements ScatterND Slice SpaceToDepth Split Tile Transpose Trilu Where",
    # Runtimes compute them on the way out of the layer before.
    "on the way out": "BatchNormalization Clip HardSigmoid HardSwish LeakyRelu Relu Sigmoid Tanh",
    # One operation for each element of the input.
    "reductions": "ArgMax ArgMin CumSum GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSumExp "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK",
}
_FREE, _PARTIAL_READS, _MOVES, _ON_THE_WAY_OUT, _REDUCTIONS = (
    frozenset(names.split()) for names in _TYPES.values()
)
# The operations for each element of the output.
_EACH: Final = {
    1: "Abs Add And Ceil Clip Cos Div Elu Equal Erf Exp Floor Greater GreaterOrEqual HardSigmoid LeakyRelu "
    "Less LessOrEqual Log Max Min Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Sigmoid Sign Sin "
    "Softplus Sqrt Sub Sum Tanh Xor",
    2: "BatchNormalization DequantizeLinear HardSwish",
    4: "DynamicQuantizeLinear QuantizeLinear Gelu",
    5: "LogSoftmax Softmax",
    8: "GroupNormalization InstanceNormalization LayerNormalization",
}


@dataclass
class Layer:
    """One layer, for one row. It is memory-bound where moving its bytes takes longer than computing."""

    name: str
    op: str
    quantized: bool
    operations: float
    weight_bytes: float
    moved_bytes: float  # what it reads and writes, weights apart

    @property
    def kind(self) -> str:
        return self.op + (" int8" if self.quantized else "")

    def bytes(self, batch: int) -> float:
        return self.weight_bytes + self.moved_bytes * batch

    def intensity(self, batch: int) -> float:
        """Return the operations for each byte."""
        return self.operations * batch / self.bytes(batch) if self.bytes(batch) else math.inf

    def is_memory_bound(self, machine: Machine, batch: int) -> bool:
        return self.intensity(batch) < machine.ridge(self.quantized)

    def seconds(self, machine: Machine, batch: int) -> float:
        """Return the least time for a batch, unless values stay in a cache."""
        moving = self.bytes(batch) / machine.bandwidth
        return max(self.operations * batch / machine.peak(self.quantized), moving)

    def from_batch(self, machine: Machine) -> int | None:
        """Return the smallest batch that is not memory-bound, or None.

        Weights weigh less in a larger batch. What each row moves stays.
        """
        ridge = machine.ridge(self.quantized)
        left = self.operations - ridge * self.moved_bytes
        return max(1, math.ceil(ridge * self.weight_bytes / left)) if left > 0 else None


@dataclass(frozen=True)
class Roofline:
    """Layers on a machine, at a batch size."""

    machine: Machine
    batch: int
    layers: Sequence[Layer]

    def seconds_of(self, *layers: Layer) -> float:
        return sum(layer.seconds(self.machine, self.batch) for layer in layers)

    @property
    def seconds(self) -> float:
        return self.seconds_of(*self.layers)

    @property
    def computing_s(self) -> float:
        """Return the time with everything in a cache, which is a lower bound."""
        peak = self.machine.peak
        return sum(layer.operations * self.batch / peak(layer.quantized) for layer in self.layers)

    @property
    def memory_share(self) -> float:
        """Return the share of the time in layers that are memory-bound."""
        bound = [layer for layer in self.layers if layer.is_memory_bound(self.machine, self.batch)]
        return self.seconds_of(*bound) / self.seconds


@dataclass(frozen=True)
class Counted:
    """A model's layers; `batches` is True if it takes several rows at a time."""

    layers: tuple[Layer, ...]
    unknown: tuple[str, ...]
    batches: bool

    @property
    def totals(self) -> dict[str, float]:
        kinds = ("operations", "weight_bytes", "moved_bytes")
        return {kind: sum(getattr(layer, kind) for layer in self.layers) for kind in kinds}


def count(path: Path) -> Counted:
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except FileNotFoundError as exc:
        raise GourmetError(f"no ONNX file found at {path}: name a .onnx file or a served model") from exc
    except Exception as exc:  # protobuf raises its own kinds for a file that is none
        raise GourmetError(f"{path} is not a valid ONNX file: {error_summary(exc)}") from exc
    if not model.graph.node:
        raise GourmetError(f"{path} is not a valid ONNX model: it holds no nodes")
    batches = _fix_batch(model.graph, path)
    # Shapes that were inferred before belong to the free sizes.
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        graph = _SizedGraph(onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph)
        for node in graph.nodes:
            graph.add(node)
    except Exception as exc:  # contradictory shapes, and attributes that onnx's own functions do not know
        raise GourmetError(f"the layers of {path} cannot be sized: {error_summary(exc)}") from exc
    unknown = tuple(f"{op} ({graph.unknown[op]}×)" for op in sorted(graph.unknown))
    return Counted(tuple(graph.layers), unknown, batches)


def _fix_batch(graph: Any, path: Path) -> bool:
    """Set the free first dimensions to one row; return True if all inputs have one."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [tensor for tensor in graph.input if tensor.name not in weights]
    batches = bool(inputs)
    for tensor in inputs:
        for position, dim in enumerate(tensor.type.tensor_type.shape.dim):
            if dim.dim_value > 0:
                batches = batches and position > 0
            elif position == 0:
                dim.dim_value = 1
            else:
                raise GourmetError(
                    f"{path} leaves sizes of {tensor.name} open: export it with all sizes but the batch's"
                )
    return batches


class _SizedGraph:
    """A graph with the known shapes and bytes of its tensors, and the layers so far."""

    def __init__(self, graph: Any) -> None:
        self.nodes = list(graph.node)
        self.layers: list[Layer] = []
        self.unknown: Counter[str] = Counter()
        self._constants = {value.name for value in graph.initializer}
        self._shapes: dict[str, Shape] = {}
        self._bytes: dict[str, float] = {}
        self._stored: dict[str, str] = {}  # a dequantized tensor -> the one whose bytes are really there
        self._made_by: dict[str, Layer] = {}
        self._uses = Counter(name for node in self.nodes for name in node.input)
        self._uses.update(value.name for value in graph.output)
        for value in graph.initializer:
            self._size(value.name, tuple(value.dims), value.data_type)
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                self._size(value.name, tuple(dim.dim_value for dim in tensor.shape.dim), tensor.elem_type)

    def _size(self, name: str, shape: Shape, element_type: int) -> None:
        self._shapes[name] = shape
        self._bytes[name] = math.prod(shape) * onnx.helper.tensor_dtype_to_np_dtype(element_type).itemsize

    def add(self, node: Any) -> None:
        """Add a node: as a layer of its own, or to the layer that computes its input."""
        is_constant = all(name in self._constants or not name for name in node.input)
        if is_constant:
            # Computed once, when the model is loaded: a weight, in the form in which it is stored.
            self._constants.update(node.output)
        if node.op_type == _DEQUANTIZE:
            self._stored[node.output[0]] = self._stored.get(node.input[0], node.input[0])
        elif not is_constant and node.op_type not in _FREE:
            weights = sum(self._size_of(name) for name in node.input if name in self._constants)
            moved = sum(self._bytes_read(node, name) for name in node.input if name not in self._constants)
            written = sum(self._bytes.get(name, 0.0) for name in node.output)
            operations, layer = self._operations(node), self._joined(node)
            if layer is None:
                name = (node.name or node.output[0]).strip("/")
                quantized = node.op_type in ("ConvInteger", "MatMulInteger") or (
                    node.op_type in _PRODUCTS and any(name in self._stored for name in node.input)
                )
                layer = Layer(name, node.op_type, quantized, operations, weights, moved + written)
                self.layers.append(layer)
            else:
                layer.operations += operations
                layer.weight_bytes += weights
                layer.moved_bytes += written - self._bytes.get(node.input[0], 0.0)
            self._made_by.update(dict.fromkeys(node.output, layer))

    def _joined(self, node: Any) -> Layer | None:
        """Return the layer that runtimes fuse the node with."""
        layer = self._made_by.get(node.input[0])
        if layer is None or self._uses[node.input[0]] > 1:
            return None
        works = layer.op in _PRODUCTS or layer.op in _ON_THE_WAY_OUT
        joins = node.op_type == _QUANTIZE or (works and node.op_type in _ON_THE_WAY_OUT)
        return layer if joins else None

    def _size_of(self, name: str) -> float:
        return self._bytes.get(self._stored.get(name, name), 0.0)

    def _bytes_read(self, node: Any, name: str) -> float:
        if node.op_type in _PARTIAL_READS and name == node.input[0]:
            return sum(self._bytes.get(output, 0.0) for output in node.output)
        return self._size_of(name)

    def _operations(self, node: Any) -> float:
        names = [*filter(None, node.input), node.output[0]]
        rule = _COUNTS.get(node.op_type)
        if rule is None or not all(name in self._shapes for name in names):
            self.unknown[node.op_type + (" of unknown size" if rule else "")] += 1
            return 0.0
        shapes = [self._shapes[name] if name else () for name in node.input]
        return float(rule(node, shapes, self._shapes[node.output[0]]))


def _for_each_element(operations: int) -> _Count:
    return lambda node, ins, out: operations * math.prod(out)


def _convolution(node: Any, ins: Sequence[Shape], out: Shape) -> float:
    # [filters, channels of a group, *kernel]
    return math.prod(out) * (2 * math.prod(ins[1][1:]) + (node.op_type == "Conv" and len(ins) > 2))


def _transposed_convolution(node: Any, ins: Sequence[Shape], out: Shape) -> float:
    # Every element of the input is spread over a kernel of each filter of its group.
    return 2 * math.prod(ins[0]) * math.prod(ins[1][1:]) + math.prod(out) * (len(ins) > 2)


def _pool(node: Any, ins: Sequence[Shape], out: Shape) -> float:
    (kernel,) = (attribute.ints for attribute in node.attribute if attribute.name == "kernel_shape")
    return float(math.prod(out) * math.prod(kernel))


_COUNTS: Final[dict[str, _Count]] = {
    **dict.fromkeys(_MOVES, _for_each_element(0)),
    **{name: _for_each_element(operations) for operations, names in _EACH.items() for name in names.split()},
    **dict.fromkeys(_REDUCTIONS, lambda node, ins, out: math.prod(ins[0])),
    **dict.fromkeys(("Conv", "ConvInteger"), _convolution),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("MatMul", "MatMulInteger"), lambda node, ins, out: 2 * math.prod(out) * ins[0][-1]),
    "Gemm": lambda node, ins, out: 2 * math.prod(ins[0]) * out[1] + math.prod(out) * (len(ins) > 2),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
}
