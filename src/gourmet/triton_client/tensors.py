"""Encode requests and decode answers: binary tensors, or JSON for streamed answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gourmet.contracts import CLIENT_PARAMETER, Array, Tensors
from gourmet.triton_client.deadline import Deadline

JSON_LENGTH: Final = "Inference-Header-Content-Length"
_EVENT: Final = b"data:"


# The tensors of a request, by the names of the model's inputs.
Inputs = Mapping[str, Array]
Outputs = dict[str, Array]
# The pieces of a streamed answer; None after each SILENCE_S without one.
Pieces = Iterator[Outputs | None]
Headers = Mapping[str, str]
Fields = Mapping[str, Any]
# The parts of a request's body, and its headers.
Body = tuple[list[bytes], dict[str, str]]


def datatype_of(values: Array) -> str:
    """Return Triton's name for the type of a tensor."""
    names = {"O": "BYTES", "S": "BYTES", "b": "BOOL"}
    return names.get(values.dtype.kind, values.dtype.name.upper().replace("FLOAT", "FP"))


def dtype_of(datatype: str) -> np.dtype[Any]:
    return np.dtype("O" if datatype == "BYTES" else datatype.lower().replace("fp", "float"))


def raw(values: Array) -> bytes:
    """Return a tensor in Triton's binary form."""
    if values.dtype.kind in "OS":  # strings, such as a photo: each after its length
        return b"".join(len(text).to_bytes(4, "little") + text for text in values.flat)
    return values.tobytes()


def raw_bytes(values: Array) -> int:
    """Return the size of a tensor in bytes; a string has four bytes of length before it."""
    if values.dtype == np.object_:
        return sum(4 + len(value) for value in values.flat)
    return values.nbytes


def infer_body(inputs: Inputs, request_id: str = "", deadline: Deadline | None = None) -> Body:
    """Encode a request of KServe's protocol: JSON, then the tensors.

    A model with a queue policy drops requests that still wait when their deadline has passed.
    """
    described, tensors = [], list[bytes]()
    for name, values in inputs.items():
        tensors.append(raw(values))
        described.append(
            {
                "name": name,
                "shape": list(values.shape),
                "datatype": datatype_of(values),
                "parameters": {"binary_data_size": len(tensors[-1])},
            }
        )
    options: dict[str, Any] = {"binary_data_output": True}
    if deadline:
        options["timeout"] = int(deadline.left_s() * 1_000_000)
        if deadline.client:
            options[CLIENT_PARAMETER] = deadline.client
    named = {"id": request_id} if request_id else {}
    head = json.dumps({"inputs": described, "parameters": options, **named}, separators=(",", ":")).encode()
    return [head, *tensors], {JSON_LENGTH: str(len(head))}


def read_answer(body: bytes, json_length: str | None) -> tuple[str, Outputs]:
    """Return the model's version and the outputs; the body begins with `json_length` bytes of JSON.

    Raise KeyError, TypeError or ValueError if the answer cannot be read; so do the other readers here.
    """
    at = int(json_length or len(body))
    answer, outputs = json.loads(body[:at]), {}
    for output in answer["outputs"]:
        datatype, shape = output["datatype"], output["shape"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = _from_json(output["data"], datatype)
        else:
            values, at = _from_raw(body[at : at + size], datatype), at + size
        outputs[output["name"]] = values.reshape(shape)
    return str(answer.get("model_version", "")), outputs


def generate_body(inputs: Inputs, request_id: str = "", deadline: Deadline | None = None) -> Body:
    """Encode a request of Triton's generate extension; texts are UTF-8."""
    named: dict[str, Any] = {"id": request_id} if request_id else {}
    if deadline and deadline.client:
        named["parameters"] = {CLIENT_PARAMETER: deadline.client}
    body = json.dumps(named | {name: _to_json(values) for name, values in inputs.items()}).encode()
    return [body], {"Content-Type": "application/json"}


def events(lines: Iterable[bytes], datatypes: Mapping[str, str]) -> Iterator[Outputs | str]:
    """Yield the outputs of each server-sent event in the lines, or the error that it reports."""
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


def joined(pieces: Iterable[Tensors]) -> Outputs:
    """Join pieces to the whole answer: texts are concatenated; of other tensors the last one counts."""
    whole: Outputs = {}
    for piece in pieces:
        for name, values in piece.items():
            continues = values.dtype == np.object_ and name in whole and whole[name].shape == values.shape
            whole[name] = whole[name] + values if continues else values
    return whole


def _to_json(values: Array) -> list[Any]:
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


def _from_raw(data: bytes, datatype: str) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(data, dtype_of(datatype))
    texts, at = [], 0
    while at < len(data):
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "little")
        texts.append(data[begin:at])
    return _strings(texts)
