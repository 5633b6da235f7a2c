"""A process that opens one ONNX file from outside, says what it takes and gives, and is asked about pictures.

python -m gourmet.tasks.classification.onnx_process LIMITS        # see gourmet.runtime.sandbox
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Final

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import Message

from gourmet.runtime import sandbox
from gourmet.runtime.bounded_reading import read_bytes
from gourmet.runtime.sandbox import Facts, Refused
from gourmet.tasks.classification.onnx_looks import signature

# A message of protobuf has at most so much, and what is served is one file.
_MAX_FILE: Final = (2 << 30) - 1


class _Opened:
    """The file of the first question, and then answers to pictures as the network's tensors."""

    def __init__(self) -> None:
        self._session: onnxruntime.InferenceSession | None = None

    def answer(self, facts: Facts, data: bytes) -> tuple[Facts, bytes]:
        if self._session is None:
            return self._open(Path(facts["path"]), facts), b""
        given = np.frombuffer(data, facts["dtype"]).reshape(facts["shape"])
        scores = np.ascontiguousarray(
            self._session.run([facts["output"]], {facts["input"]: given})[0], dtype=np.float32
        )
        return {"shape": scores.shape}, scores.tobytes()

    def _open(self, path: Path, facts: Facts) -> Facts:
        """What it is. Where more lies `beside` it than is allowed for: how much, and it is not opened.

        A file that has all in it is asked as it is; any other is made one, which is written `into` a place.
        """
        content = path.read_bytes()
        model = onnx.load_model_from_string(content)
        found = signature(model, facts["layout"])
        outside = [each for each in _tensors(model) if each.external_data or each.data_location]
        places = _places(outside, path.parent)
        beside = sum(place.stat().st_size for place in {*places})
        if beside > facts["beside"]:
            return {"beside": beside}
        _take_in(outside, places, beside)
        if found["rows"] > 1:
            _free_batch(model)
        if outside or found["rows"] > 1:
            content = model.SerializeToString()
            if facts["into"]:
                Path(facts["into"]).write_bytes(content)
        # From its bytes, so that nothing beside the file can be meant.
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        return {**found, "is_whole": not (outside or found["rows"] > 1)}


def in_one_file(content: bytes) -> onnx.ModelProto:
    """The network of a file; Refused where its weights lie in others."""
    model = onnx.load_model_from_string(content)
    if any(each.external_data or each.data_location for each in _tensors(model)):
        raise Refused(
            "", "its weights lie in other files: save it as one, with onnx.save(onnx.load(path), …)"
        )
    return model


def _places(tensors: Sequence[onnx.TensorProto], folder: Path) -> list[Path]:
    """The file that each of `tensors` lies in; Refused unless it is one in `folder`, where links lead too."""
    found, root = [], folder.resolve()
    for tensor in tensors:
        location = next((each.value for each in tensor.external_data if each.key == "location"), "")
        path = (root / location).resolve()
        if Path(location).is_absolute() or not path.is_relative_to(root) or not path.is_file():
            raise Refused(
                "",
                f"its weights lie in other files, and {shorten(repr(location), 80)} is not in its folder: "
                "put all of them there, or save it as one, with onnx.save(onnx.load(path), …)",
            )
        found.append(path)
    return found


def _take_in(tensors: Sequence[onnx.TensorProto], places: Sequence[Path], beside: int) -> None:
    """Put the weights that lie in other files into the tensors themselves."""
    files = {place: memoryview(read_bytes(place, _MAX_FILE)) for place in {*places}}
    left = beside  # no byte is of two tensors
    for tensor, place in zip(tensors, places, strict=True):
        about = {each.key: each.value for each in tensor.external_data}
        first = int(about.get("offset", "0"))
        last = first + int(about["length"]) if "length" in about else len(files[place])
        left -= last - first
        if not 0 <= first <= last <= len(files[place]) or left < 0:
            raise Refused(
                "", f"its weights in {shorten(repr(place.name), 80)} are cut short, or of another file"
            )
        tensor.raw_data = bytes(files[place][first:last])
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _free_batch(model: onnx.ModelProto) -> None:
    """Let a network that was exported for so many pictures take any number, if it can."""
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """All tensors of a model, in whatever graph, function or attribute of it."""
    waiting = [message]
    while waiting:
        each = waiting.pop()
        if isinstance(each, onnx.TensorProto):
            yield each
        for field, value in each.ListFields():
            if field.message_type:
                waiting += value if isinstance(value, list) or hasattr(value, "add") else [value]


if __name__ == "__main__":
    sandbox.serve(sandbox.in_a_sentence(_Opened().answer))
