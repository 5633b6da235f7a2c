"""A process that opens one ONNX file from outside, says what it takes and gives, and is asked about pictures.

python -m gourmet.tasks.classification.onnx_process LIMITS        # see gourmet.runtime.sandbox
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import Message

from gourmet.runtime import sandbox
from gourmet.runtime.sandbox import Facts, Refused

# What a tensor may be called, as its name is written into configs and asked for by clients.
_NAME: Final = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_MAX_SIDE: Final = 4096
_MAX_LABELS: Final = 100_000


class _Opened:
    """The file of the first question, and then answers to pictures as the network's tensors."""

    def __init__(self) -> None:
        self._session: onnxruntime.InferenceSession | None = None

    def answer(self, facts: Facts, data: bytes) -> tuple[Facts, bytes]:
        if self._session is None:
            content = Path(facts["path"]).read_bytes()
            found = _signature(in_one_file(content))
            # From its bytes, so that nothing beside the file can be meant.
            self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
            return found, b""
        given = np.frombuffer(data, np.float32).reshape(facts["shape"])
        scores = np.ascontiguousarray(
            self._session.run([facts["output"]], {facts["input"]: given})[0], dtype=np.float32
        )
        return {"shape": scores.shape}, scores.tobytes()


def in_one_file(content: bytes) -> onnx.ModelProto:
    """The network of a file; Refused where its weights lie in others."""
    model = onnx.load_model_from_string(content)
    if any(each.external_data or each.data_location for each in _tensors(model)):
        raise Refused(
            "", "its weights lie in other files: save it as one, with onnx.save(onnx.load(path), …)"
        )
    return model


def _signature(model: onnx.ModelProto) -> dict[str, Any]:
    """What it takes and gives; Refused unless it is pixels in and a score a label out."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    given, answers = [each for each in graph.input if each.name not in weights], list(graph.output)
    for name in (each.name for each in (*given, *answers)):
        if not _NAME.fullmatch(name):
            raise Refused(
                "",
                f"it calls a tensor {shorten(repr(name), 80)}: a name may have at most 128 letters, digits "
                "and _ . : / - in it; export the network again with plain names",
            )
    shapes = {
        each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in (*given, *answers)
    }
    floats = all(each.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for each in (*given, *answers))
    match list(shapes.values()):
        case [[rows, 3, high, wide], [_, labels]] if (
            floats and rows in (0, 1) and 0 < high == wide <= _MAX_SIDE and 0 < labels <= _MAX_LABELS
        ):
            names = {"input": given[0].name, "output": answers[0].name}
            return {**names, "side": high, "labels": labels, "batched": rows == 0}
    listed = shorten(", ".join(f"{name!r} {shape}" for name, shape in shapes.items()), 300)
    raise Refused(
        "",
        f"it has {listed} (0 is any size); a classifier of pictures takes one float tensor "
        f"[N, 3, side, side] of at most {_MAX_SIDE} pixels a side and gives one [N, labels]",
    )


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
