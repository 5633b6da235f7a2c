"""Use any ONNX file as a classifier of pictures: its inputs, its outputs, and its answers.

No code is in such a file. Operators that ONNX Runtime does not have, and weights outside of the file's own
folder, are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from google.protobuf.message import Message
from onnx.external_data_helper import load_external_data_for_model

from gourmet.errors import GourmetError
from gourmet.evaluation.accuracy import Scores
from gourmet.evaluation.same_answers import Answers, Pixels
from gourmet.pictures.classifier import PictureClassifier
from gourmet.served.onnx_session import FATAL_ONLY
from gourmet.served.reading import error_summary

# Allowed names of tensors: they are written into configs, and clients use them.
_NAME: Final = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_MAX_SIDE: Final = 4096
_MAX_LABELS: Final = 100_000
_KINDS: Final = {
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.UINT8: "UINT8",
}


@dataclass(frozen=True)
class Signature:
    """The input and the output of a classifier of pictures. A side of 0, or 0 rows, may be any."""

    input: str
    datatype: str
    layout: str
    channels: int
    side: int
    rows: int
    output: str
    scores: str  # their type
    labels: int
    statistics: Mapping[str, Sequence[float]]  # mean and std, if the file has them

    @classmethod
    def of(cls, model: onnx.ModelProto, layout: str) -> Signature:
        """Raise ValueError unless the file takes pixels and gives a score for each label.

        `layout` is for files that do not say where the channels are.
        """
        graph = model.graph
        weights = {tensor.name for tensor in graph.initializer}
        inputs, outputs = [tensor for tensor in graph.input if tensor.name not in weights], list(graph.output)
        for name in (tensor.name for tensor in (*inputs, *outputs)):
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"it calls a tensor {shorten(repr(name), 80)}: a name may have at most 128 letters, "
                    "digits and _ . : / - in it; export the network again with plain names",
                )
        kinds = [tensor.type.tensor_type.elem_type for tensor in (*inputs, *outputs)]
        shapes = [
            [dim.dim_value for dim in tensor.type.tensor_type.shape.dim] for tensor in (*inputs, *outputs)
        ]
        taken, gives = shapes[: len(inputs)], shapes[len(inputs) :]
        known = all(kind in _KINDS for kind in kinds) and _KINDS.get(kinds[-1]) != "UINT8"
        if known and [*map(len, taken)] == [4] and [*map(len, gives)] == [2]:
            (rows, *picture), (_, labels) = taken[0], gives[0]
            layout = _layout(picture, layout)
            channels, high, wide = picture if layout == "NCHW" else (picture[2], *picture[:2])
            side = max(high, wide)
            if (
                channels in (0, 1, 3)
                and {high, wide} <= {0, side}
                and side <= _MAX_SIDE
                and 1 < labels <= _MAX_LABELS
            ):
                return cls(
                    inputs[0].name,
                    _KINDS[kinds[0]],
                    layout,
                    channels or 3,
                    side,
                    rows,
                    outputs[0].name,
                    _KINDS[kinds[1]],
                    labels,
                    _statistics(model),
                )
        names = [
            f"{tensor.name!r} {shape}" for tensor, shape in zip((*inputs, *outputs), shapes, strict=True)
        ]
        raise ValueError(
            f"it has {shorten(', '.join(names), 300)} (0 is any size); a classifier of pictures takes one "
            "float tensor [N, 3, side, side], or uint8, float16, the channels last or a single one, of at "
            f"most {_MAX_SIDE} pixels a side, and gives one [N, labels]",
        )


class GivenOnnx:
    """An open ONNX file with all its weights; it takes any number of pictures if that is possible."""

    def __init__(self, path: Path, layout: str = "") -> None:
        """Raise GourmetError unless the file takes pixels and gives a score for each label."""
        self._path = path
        try:
            content = path.read_bytes()
            model = onnx.load_model_from_string(content)
            self.signature = Signature.of(model, layout)
            is_changed = _take_in(model, path.parent)
            if self.signature.rows > 1:
                _free_batch(model)
                is_changed = True
            self.changed = model.SerializeToString() if is_changed else None
            # Opened from bytes, so that no other file can be read.
            self._session = _session(self.changed or content)
        except Exception as exc:  # protobuf and ONNX Runtime have their own
            raise GourmetError(f"{path} cannot be read as ONNX: {error_summary(exc)}") from exc

    def scores_for(self, system: PictureClassifier, *, batched: bool) -> Answers:
        """Return a function that answers pixels, prepared by `system`, in one batch or one by one."""

        def run_pixels(pixels: Pixels) -> Scores:
            tensor = system.tensor(pixels, system.datatypes[0])
            rows = [tensor] if batched else np.split(tensor, len(tensor))
            return np.concatenate([self._scores(row) for row in rows])

        return run_pixels

    def _scores(self, rows: npt.NDArray[Any]) -> Scores:
        signature = self.signature
        try:
            return np.asarray(self._session.run([signature.output], {signature.input: rows})[0], np.float32)
        except Exception as exc:
            raise GourmetError(f"{self._path} cannot be run: {error_summary(exc)}") from exc


def _layout(picture: Sequence[int], chosen: str) -> str:
    is_first, is_last = picture[0] in (1, 3), picture[2] in (1, 3)
    if is_first != is_last:
        return "NCHW" if is_first else "NHWC"
    if chosen or any(picture):
        return chosen or "NCHW"
    raise ValueError("it does not say where its channels are: say it with --layout NCHW or --layout NHWC")


def _statistics(model: onnx.ModelProto) -> dict[str, list[float]]:
    """Return mean and standard deviation of pictures from 0 to 1, if the file's metadata have them."""
    properties = {entry.key: entry.value for entry in model.metadata_props}
    if properties.get("author") == "Ultralytics" and properties.get("task") == "classify":
        return {"mean": [0.0], "std": [1.0]}
    try:
        statistics = {key: [float(value) for value in json.loads(properties[key])] for key in ("mean", "std")}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    unit = 255.0 if max(statistics["std"], default=0.0) > 2.0 else 1.0  # of pixels up to 255
    return {key: [value / unit for value in values] for key, values in statistics.items()}


def opened_alone(content: bytes) -> onnxruntime.InferenceSession:
    """Open an ONNX file's bytes on the CPU; raise ValueError if its weights are in other files."""
    if _outside(onnx.load_model_from_string(content)):
        raise ValueError("its weights lie in other files: save it as one, with onnx.save(onnx.load(path), …)")
    return _session(content)


def _session(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _take_in(model: onnx.ModelProto, folder: Path) -> bool:
    """Copy the weights that lie in other files of `folder` into the model; return whether there are any."""
    if not _outside(model):
        return False
    advice = "put all of them into its folder, or save it as one, with onnx.save(onnx.load(path), …)"
    try:  # which follows no link and no path out of the folder
        load_external_data_for_model(model, str(folder.resolve()))
    except Exception as exc:
        reason = error_summary(exc)
        raise ValueError(f"its weights lie in other files, which are refused: {advice} ({reason})") from exc
    if _outside(model):
        raise ValueError(f"its weights lie in other files, of which some are not read: {advice}")
    return True


def _free_batch(model: onnx.ModelProto) -> None:
    """Let a network that was exported for a fixed batch size take any number of pictures, if it can."""
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]


def _outside(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the tensors whose values are in other files."""
    return [tensor for tensor in _tensors(model) if tensor.external_data or tensor.data_location]


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield all tensors of a model: of its graphs, functions and attributes."""
    waiting = [message]
    while waiting:
        part = waiting.pop()
        if isinstance(part, onnx.TensorProto):
            yield part
        for field, value in part.ListFields():
            if field.message_type:
                waiting += value if isinstance(value, list) or hasattr(value, "add") else [value]
