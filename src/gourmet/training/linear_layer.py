"""The last layer of a network without torch, which a machine that only serves does not have.

It is solved for its activations: softmax regression on them is convex, so there is one best layer, and no
rate, epoch or order of the examples decides which one is found. It is read out of a served network's ONNX
file and replaced there without the package that writes such files: the numbers of a layer are bytes that lie
together, and a layer of the same shape has as many. What lies before stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from gourmet.errors import GourmetError

Floats = npt.NDArray[np.floating[Any]]
Classes = npt.NDArray[np.integer[Any]]

_MAX_STEPS: Final = 200
_HISTORY: Final = 10
_GRADIENT: Final = 1e-6
_GAIN: Final = 1e-6
_IR_VERSION: Final = 8  # of ONNX's opset 17


@dataclass(frozen=True)
class Layer:
    """Activations [rows, inputs] -> logits [rows, outputs]."""

    weight: npt.NDArray[np.float32]  # [outputs, inputs]
    bias: npt.NDArray[np.float32]

    def __call__(self, activations: Floats) -> npt.NDArray[np.float32]:
        return np.asarray(activations @ self.weight.T + self.bias, np.float32)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.weight.tobytes() + self.bias.tobytes()).hexdigest()

    def towards(self, other: Layer, share: float) -> Layer:
        """Interpolate between both layers; a share of 1 gives the other one."""
        return Layer(
            self.weight + np.float32(share) * (other.weight - self.weight),
            self.bias + np.float32(share) * (other.bias - self.bias),
        )


def solve(
    initial_layer: Layer,
    activations: Floats,
    targets: Floats,
    counts: Floats,
    *,
    pull: float,
    strengths: Floats | None = None,
    start: Layer | None = None,
) -> Layer:
    """Return the layer that fits `activations` [rows, inputs] best, starting from `initial_layer`.

    `targets` [rows, outputs or one more] are the probabilities wanted of each row; a last column beside the
    layer's outputs is for none of the labels, whose logit is zero. `counts` says how much each row counts.
    `pull` is an L2 penalty on the change from `initial_layer`, on standardised inputs; `strengths` divides it
    for each input. `start` is a layer near the solution, which is then found sooner.
    """
    outputs, inputs = initial_layer.weight.shape
    mean = activations.mean(axis=0, dtype=np.float64)
    deviation = np.maximum(activations.std(axis=0, dtype=np.float64), 1e-6)
    scale = deviation / (1.0 if strengths is None else strengths)
    rows = ((activations - mean) / scale).astype(np.float32)
    kinds = targets.shape[1]
    first = np.pad(initial_layer(activations).astype(np.float64), ((0, 0), (0, kinds - outputs)))
    share = (counts / counts.sum())[:, np.newaxis]

    def loss(unknown: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient for a change of the weights; the bias is the last column."""
        change, shift = unknown[:, :-1], unknown[:, -1]
        logits = first + rows @ change.T.astype(np.float32) + shift
        logits -= logits.max(axis=1, keepdims=True)
        likely = np.exp(logits)
        total = likely.sum(axis=1, keepdims=True)
        value = -float((share * targets * (logits - np.log(total))).sum()) + pull / 2 * float(
            (change**2).sum()
        )
        wrong = share * (likely / total * targets.sum(axis=1, keepdims=True) - targets)
        gradient = np.empty_like(unknown)
        gradient[:, :-1] = wrong.T.astype(np.float32) @ rows + pull * change
        gradient[:, -1] = wrong.sum(axis=0)
        return value, gradient

    unknown = np.zeros((kinds, inputs + 1))
    if start:
        weights = start.weight.astype(np.float64) - initial_layer.weight
        unknown[:outputs, :-1] = weights * scale
        unknown[:outputs, -1] = start.bias - initial_layer.bias + weights @ mean
        unknown -= unknown.mean(axis=0)  # which changes no probability, and pulls least
    unknown = _least(loss, unknown)
    # The same added to all logits changes no probability: the logit of none of the labels becomes zero.
    if kinds > outputs:
        unknown = unknown - unknown[-1:]
    weights = unknown[:outputs, :-1] / scale
    return Layer(
        (initial_layer.weight + weights).astype(np.float32),
        (initial_layer.bias + unknown[:outputs, -1] - weights @ mean).astype(np.float32),
    )


def _least(loss: Callable[[Floats], tuple[float, Floats]], unknown: Floats) -> Floats:
    """Minimise a convex function by L-BFGS (Nocedal and Wright, Numerical Optimization, 7.2)."""
    value, gradient = loss(unknown)
    history: list[tuple[Floats, Floats, float]] = []
    for _ in range(_MAX_STEPS):
        if np.abs(gradient).max() < _GRADIENT:
            break
        direction, shares = -gradient, []
        for moved, turned, curvature in reversed(history):
            shares.append(float((moved * direction).sum()) / curvature)
            direction = direction - shares[-1] * turned
        if history:
            moved, turned, curvature = history[-1]
            direction = direction * (curvature / float((turned**2).sum()))
        for (moved, turned, curvature), share in zip(history, reversed(shares), strict=True):
            direction = direction + (share - float((turned * direction).sum()) / curvature) * moved
        slope = float((gradient * direction).sum())
        length = 1.0 if history else min(1.0, 1.0 / float(np.abs(gradient).sum()))
        while True:
            moved = length * direction
            next_value, next_gradient = loss(unknown + moved)
            if next_value <= value + 1e-4 * length * slope or length < 1e-8:
                break
            length /= 2
        turned = next_gradient - gradient
        gain, curvature = value - next_value, float((moved * turned).sum())
        if gain <= 0:
            break
        unknown, value, gradient = unknown + moved, next_value, next_gradient
        if curvature > 1e-12:
            history = [*history[1 - _HISTORY :], (moved, turned, curvature)]
        if gain < _GAIN:
            break
    return unknown


def evenly_counted(classes: Classes, kinds: int) -> Floats:
    """Return a weight for each row, so that all classes count equally."""
    return 1.0 / np.maximum(np.bincount(classes, minlength=kinds), 1)[classes]


def one_hot(classes: Classes, kinds: int) -> Floats:
    """Return the target probabilities of rows of these classes."""
    return np.eye(kinds)[classes]


@dataclass(frozen=True)
class OnnxLayer:
    """A file's last `Gemm`: its input, its weights, and their offsets in the file."""

    content: bytes
    layer: Layer
    input: str
    weight_at: int
    bias_at: int
    before: str  # a digest of all weights but its own, as last_layer.py makes it

    @classmethod
    def read(cls, path: Path) -> OnnxLayer:
        content = path.read_bytes()
        try:
            # ModelProto.graph; in it the nodes and the initializers (onnx.proto).
            (graph,) = (span for number, *span in _fields(content, 0, len(content)) if number == 7)
            parts = [
                (number, start, end) for number, start, end in _fields(content, *graph) if number in (1, 5)
            ]
            gemm = [_strings(content, start, end) for number, start, end in parts if number == 1]
            input_name, weight, bias = next(node[1] for node in reversed(gemm) if node[4] == ["Gemm"])
            tensors = dict(_tensor(content, start, end) for number, start, end in parts if number == 5)
            bias_numbers = _floats(content, *tensors[bias])
            weight_numbers = _floats(content, *tensors[weight]).reshape(len(bias_numbers), -1)
        except (ValueError, LookupError, StopIteration, UnicodeDecodeError) as exc:
            raise GourmetError(f"{path} has no last layer that can be read") from exc
        digest = hashlib.sha256()
        for name, (start, end) in tensors.items():
            if name not in (weight, bias) and name.endswith((".weight", ".bias")):
                digest.update(name.encode() + content[start:end])
        layer = Layer(weight_numbers, bias_numbers)
        return cls(content, layer, input_name, tensors[weight][0], tensors[bias][0], digest.hexdigest())

    def with_layer(self, layer: Layer) -> bytes:
        """Return the file with another layer."""
        content = bytearray(self.content)
        for at, numbers in ((self.weight_at, layer.weight), (self.bias_at, layer.bias)):
            content[at : at + numbers.nbytes] = np.ascontiguousarray(numbers, "<f4").tobytes()
        return bytes(content)

    def with_new_layer(self, layer: Layer, output: str) -> bytes:
        """Return a file with `layer` in place of the last one and of all that hangs on it.

        Its logits are the only output. What the file says about its own labels is left out.
        """
        content, size = self.content, len(self.content)
        (graph,) = (span for number, *span in _fields(content, 0, size) if number == 7)
        parts, needed, kept = [*_fields(content, *graph)], {self.input}, []
        for part in reversed(parts):
            if part[0] == 1:
                texts = _strings(content, *part[1:])
                if not needed.isdisjoint(texts[2]):
                    needed |= {*texts[1]}
                    kept.append(part)
        kept.reverse()
        for number, start, end in parts:  # weights, inputs and quantization
            if number == 11 or (number == 5 and _tensor(content, start, end)[0] in needed):
                kept.append((number, start, end))
        versions = [content[start:end] for number, start, end in _fields(content, 0, size) if number == 8]
        weights = {"own.weight": layer.weight, "own.bias": layer.bias}
        added = [
            _field(1, _gemm([self.input, *weights], output)),
            *(_field(5, _initializer(name, numbers)) for name, numbers in weights.items()),
            _field(12, _rows(output, len(layer.bias))),
            _field(2, b"own"),
        ]
        whole = b"".join([*(_field(number, content[start:end]) for number, start, end in kept), *added])
        return b"".join(
            [_number(1, _IR_VERSION), *(_field(8, version) for version in versions), _field(7, whole)]
        )

    def activations(
        self,
        rows: npt.NDArray[Any],
        prepare: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda rows: rows,
        tick: Callable[[float], None] = lambda _share: None,
    ) -> Floats:
        """Return the layer's inputs for rows that `prepare` turns into the network's own input."""
        # A file that is written twice over is both together: one more output is a few bytes behind the rest.
        name = self.input.encode()
        output = _field(7, _field(12, _field(1, name)))
        session = onnxruntime.InferenceSession(self.content + output, providers=["CPUExecutionProvider"])
        input_name = session.get_inputs()[0].name
        batches = []
        for at in range(0, len(rows), 16):
            batches.append(session.run([self.input], {input_name: prepare(rows[at : at + 16])})[0])
            tick(min(1.0, (at + 16) / len(rows)))
        return np.concatenate(batches)


def _fields(content: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field with a length in a protobuf message."""
    while at < end:
        key, at = _varint(content, at)
        if key & 7 == 2:
            length, at = _varint(content, at)
            yield key >> 3, at, at + length
            at += length
        elif key & 7 == 0:
            _, at = _varint(content, at)
        else:
            at += {1: 8, 5: 4}[key & 7]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 128:
            return value, at


def _as_varint(value: int) -> bytes:
    low = value & 127
    return bytes([low | 128]) + _as_varint(value >> 7) if value >> 7 else bytes([low])


def _number(number: int, value: int) -> bytes:
    return _as_varint(number << 3) + _as_varint(value)


def _field(number: int, value: bytes) -> bytes:
    """Encode a field of a message."""
    return _as_varint(number << 3 | 2) + _as_varint(len(value)) + value


def _gemm(inputs: Sequence[str], output: str) -> bytes:
    """Encode a NodeProto: rows × transposed weight + bias."""
    named = b"".join(_field(1, name.encode()) for name in inputs)
    transposed = _field(1, b"transB") + _number(3, 1) + _number(20, 2)
    about = _field(2, output.encode()) + _field(3, b"own") + _field(4, b"Gemm")
    return named + about + _field(5, transposed)


def _initializer(name: str, numbers: npt.NDArray[np.float32]) -> bytes:
    """Encode a TensorProto."""
    dims = b"".join(_number(1, size) for size in numbers.shape)
    return dims + _number(2, 1) + _field(8, name.encode()) + _field(9, numbers.astype("<f4").tobytes())


def _rows(name: str, width: int) -> bytes:
    """Encode a ValueInfoProto: FP32 [batch, width]."""
    shape = _field(1, _field(2, b"batch")) + _field(1, _number(1, width))
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, 1) + _field(2, shape)))


def _strings(content: bytes, start: int, end: int) -> dict[int, list[str]]:
    """Return a node's inputs (1), outputs (2), name (3) and operator (4)."""
    texts: dict[int, list[str]] = {number: [] for number in (1, 2, 3, 4)}
    for number, first, last in _fields(content, start, end):
        if number in texts:
            texts[number].append(content[first:last].decode())
    return texts


def _tensor(content: bytes, start: int, end: int) -> tuple[str, tuple[int, int]]:
    """Return an initializer's name, and where its values are."""
    fields = {number: (first, last) for number, first, last in _fields(content, start, end)}
    first, last = fields[8]
    return content[first:last].decode(), fields.get(9, (0, 0))


def _floats(content: bytes, start: int, end: int) -> npt.NDArray[np.float32]:
    return np.frombuffer(content[start:end], "<f4").astype(np.float32)
