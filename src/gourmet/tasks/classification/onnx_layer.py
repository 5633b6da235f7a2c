"""The last layer of a served network, read out of its ONNX file and replaced in it.

A machine that only serves has no package that writes ONNX files, and needs none: the numbers of a layer are
bytes that lie together, and a layer of the same shape has as many. What lies before stays as it is.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from gourmet.errors import GourmetError
from gourmet.tasks.classification.linear_layer import Floats, Layer


@dataclass(frozen=True)
class OnnxLayer:
    """A file's last `Gemm`: its input, its weights, and their offsets in the file."""

    content: bytes
    layer: Layer
    input: str
    weight_at: int
    bias_at: int
    before: str  # a digest of all weights but its own, as gourmet.tasks.classification.last_layer makes it

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

    def activations(self, rows: npt.NDArray[Any]) -> Floats:
        """Return the layer's inputs for rows of the network's own input."""
        # A file that is written twice over is both together: one more output is a few bytes behind the rest.
        name = self.input.encode()
        output = _field(7, _field(12, _field(1, name)))
        session = onnxruntime.InferenceSession(self.content + output, providers=["CPUExecutionProvider"])
        input_name = session.get_inputs()[0].name
        return np.concatenate(
            [session.run([self.input], {input_name: rows[at : at + 16]})[0] for at in range(0, len(rows), 16)]
        )


def in_torchscript(content: bytes, old: Layer, new: Layer) -> bytes:
    """Replace `old` by `new` in a TorchScript file; raise GourmetError unless `old` occurs exactly once."""
    numbers = {_bytes(old.weight): _bytes(new.weight), _bytes(old.bias): _bytes(new.bias)}
    made, replaced = io.BytesIO(), 0
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(made, "w") as target:
        for info in archive.infolist():
            tensor = archive.read(info)
            replaced += tensor in numbers
            target.writestr(info, numbers.get(tensor, tensor))
    if replaced != len(numbers):
        raise GourmetError("the TorchScript file is of another network than the ONNX file beside it")
    return made.getvalue()


def _bytes(numbers: npt.NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(numbers, "<f4").tobytes()


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


def _field(number: int, value: bytes) -> bytes:
    """Encode a field of a message, shorter than 16 KB."""
    size = len(value)
    return bytes([number << 3 | 2, size & 127 | 128, size >> 7]) + value


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
