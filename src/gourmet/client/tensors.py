"""Tensors on their way to Triton and back: binary, or JSON where answers are streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gourmet.client.deadline import Deadline
from gourmet.contracts import CLIENT_PARAMETER, Array, Tensors

_EVENT: Final = b"data:"


@dataclass(frozen=True)
class SharedTensor:
    """A tensor that lies in memory which the server was told of."""

    region: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int = 0


# What a request holds, by the names of a model's inputs.
Inputs = Mapping[str, Array | SharedTensor]


def datatype_of(values: Array) -> str:
    """Triton's name for what a tensor holds."""
    names = {"O": "BYTES", "S": "BYTES", "b": "BOOL"}
    return names.get(values.dtype.kind, values.dtype.name.upper().replace("FLOAT", "FP"))


def dtype_of(datatype: str) -> np.dtype[Any]:
    return np.dtype("O" if datatype == "BYTES" else datatype.lower().replace("fp", "float"))


def raw(values: Array) -> bytes:
    """A tensor as Triton takes it over the wire."""
    if values.dtype.kind in "OS":  # strings, such as a photo as it came, each after its length
        return b"".join(len(text).to_bytes(4, "little") + text for text in values.flat)
    return values.tobytes()


def raw_bytes(values: Array | SharedTensor) -> int:
    """How many bytes that takes; a string goes after four bytes that say its length."""
    if isinstance(values, np.ndarray) and values.dtype == np.object_:
        return sum(4 + len(value) for value in values.flat)
    return values.nbytes


def from_raw(data: bytes, datatype: str, shape: Sequence[int]) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(data, dtype_of(datatype)).reshape(shape)
    texts, at = [], 0
    while at < len(data):
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "little")
        texts.append(data[begin:at])
    return _strings(texts).reshape(shape)


def request_body(inputs: Inputs, request_id: str = "", deadline: Deadline | None = None) -> list[bytes]:
    """A request of KServe's protocol: JSON, and after it the tensors that are not in shared memory."""
    described, tensors = [], []
    for name, values in inputs.items():
        parameters: dict[str, Any]
        if isinstance(values, SharedTensor):
            datatype = values.datatype
            parameters = {
                "shared_memory_region": values.region,
                "shared_memory_offset": values.offset,
                "shared_memory_byte_size": values.nbytes,
            }
        else:
            datatype = datatype_of(values)
            tensors.append(raw(values))
            parameters = {"binary_data_size": len(tensors[-1])}
        described.append(
            {"name": name, "shape": list(values.shape), "datatype": datatype, "parameters": parameters}
        )
    request: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
    if request_id:
        request["id"] = request_id
    if deadline:
        request["parameters"]["timeout"] = int(deadline.left_s() * 1_000_000)
        if deadline.client:
            request["parameters"][CLIENT_PARAMETER] = deadline.client
    return [json.dumps(request, separators=(",", ":")).encode(), *tensors]


def read_answer(body: bytes, json_bytes: int | None) -> tuple[dict[str, Any], dict[str, Array]]:
    """The JSON that an answer begins with, and its outputs.

    Raise KeyError, TypeError or ValueError where it cannot be read; so do the others here.
    """
    answer = json.loads(body[:json_bytes])
    outputs, at = {}, json_bytes or 0
    for each in answer["outputs"]:
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = _from_json(each["data"], each["datatype"]).reshape(each["shape"])
        else:
            values, at = from_raw(body[at : at + size], each["datatype"], each["shape"]), at + size
        outputs[each["name"]] = values
    return answer, outputs


def generate_body(inputs: Inputs, request_id: str = "", client: str = "") -> bytes:
    """A request of Triton's generate extension; texts are UTF-8."""
    named: dict[str, Any] = {"id": request_id} if request_id else {}
    if client:
        named["parameters"] = {CLIENT_PARAMETER: client}
    return json.dumps(named | {name: _to_json(values) for name, values in inputs.items()}).encode()


def events(lines: Iterable[bytes], datatypes: Mapping[str, str]) -> Iterator[dict[str, Array] | str]:
    """The outputs of each server-sent event in an answer's lines, or the reason why there are none."""
    for line in lines:
        if line.startswith(_EVENT):
            event = json.loads(line.removeprefix(_EVENT))
            if "error" in event:
                yield str(event["error"])
            else:
                yield {
                    name: _from_json(event[name], datatype)
                    for name, datatype in datatypes.items()
                    if name in event
                }


def joined(pieces: Iterable[Tensors]) -> dict[str, Array]:
    """The whole answer: texts one after another, and of everything else what came last."""
    whole: dict[str, Array] = {}
    for piece in pieces:
        for name, values in piece.items():
            continues = values.dtype == np.object_ and name in whole and whole[name].shape == values.shape
            whole[name] = whole[name] + values if continues else values
    return whole


def _to_json(values: Array | SharedTensor) -> list[Any]:
    if isinstance(values, SharedTensor):
        raise TypeError("the generate extension takes no shared memory")
    flat = values.ravel().tolist()
    return [item.decode() if isinstance(item, bytes) else item for item in flat]


def _from_json(value: Any, datatype: str) -> Array:
    items = value if isinstance(value, list) else [value]
    if datatype == "BYTES":
        return _strings([str(item).encode() for item in items])
    return np.array(items, dtype_of(datatype))


def _strings(items: Sequence[bytes]) -> Array:
    strings = np.empty(len(items), np.object_)
    strings[:] = items
    return strings
