"""What an ONNX network is, told by what it takes and gives: a classifier of pictures, or what it looks like.

For the process that reads files from outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from textwrap import shorten
from typing import Any, Final

import onnx

from gourmet.runtime.sandbox import Refused

# What a tensor may be called, as its name is written into configs and asked for by clients.
_NAME: Final = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_MAX_SIDE: Final = 4096
_MAX_LABELS: Final = 100_000
_KINDS: Final = {
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.UINT8: "UINT8",
}


def signature(model: onnx.ModelProto, layout: str = "") -> dict[str, Any]:
    """Its tensors; Refused unless it is pixels in and a score a label out. A size of 0 is any.

    `layout` is for those that do not say where the channels are.
    """
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
    kinds = [each.type.tensor_type.elem_type for each in (*given, *answers)]
    shapes = [[dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in (*given, *answers)]
    taken, gives = shapes[: len(given)], shapes[len(given) :]
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
            return {
                **{"input": given[0].name, "datatype": _KINDS[kinds[0]], "layout": layout},
                **{"output": answers[0].name, "scores": _KINDS[kinds[1]], "labels": labels},
                **{"channels": channels or 3, "side": side, "rows": rows, **_statistics(model)},
            }
    names = [f"{each.name!r} {shape}" for each, shape in zip((*given, *answers), shapes, strict=True)]
    like = _looks_like(taken, gives, {onnx.TensorProto.DataType.Name(kind) for kind in kinds[: len(given)]})
    raise Refused(
        "",
        f"{like}it has {shorten(', '.join(names), 300)} (0 is any size); a classifier of pictures takes one "
        f"float tensor [N, 3, side, side], or uint8, float16, the channels last or a single one, of at most "
        f"{_MAX_SIDE} pixels a side, and gives one [N, labels]",
    )


def _layout(picture: Sequence[int], asked: str) -> str:
    is_first, is_last = picture[0] in (1, 3), picture[2] in (1, 3)
    if is_first != is_last:
        return "NCHW" if is_first else "NHWC"
    if asked or any(picture):
        return asked or "NCHW"
    raise Refused("", "it does not say where its channels are: say it with --layout NCHW or --layout NHWC")


def _looks_like(taken: Sequence[Sequence[int]], gives: Sequence[Sequence[int]], kinds: set[str]) -> str:
    """For people; empty where nothing is known."""
    ranks, answered = {*map(len, taken)}, [*map(len, gives)]
    if kinds & {"STRING", "INT32", "INT64"}:
        like = "a network of texts, which takes tokens"
    elif 4 not in ranks:
        like = {2: "a network of tables, a row of numbers each", 5: "a network of videos"}.get(
            max(ranks, default=0), "a network of sounds or series"
        )
    elif 3 in answered or (len(gives) > 1 and any(shape[-1:] == [4] for shape in gives)):
        like = "a detector of objects, which gives boxes"
    elif 4 in answered:
        like = "a segmentation, which gives a picture"
    elif answered in ([1], [2]) and gives[0][1:] in ([], [1]):
        like = "a regression, one number a picture, or a yes or no"
    elif len(gives) > 1:
        like = "a network of several answers"
    else:
        return ""
    return f"it looks like {like}, and not like a classifier of pictures: "


def _statistics(model: onnx.ModelProto) -> dict[str, list[float]]:
    """The mean and standard deviation of pictures from 0 to 1, where the file's metadata say them."""
    said = {each.key: each.value for each in model.metadata_props}
    if said.get("author") == "Ultralytics" and said.get("task") == "classify":
        return {"mean": [0.0], "std": [1.0]}
    try:
        found = {key: [float(value) for value in json.loads(said[key])] for key in ("mean", "std")}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    least = 255.0 if max(found["std"], default=0.0) > 2.0 else 1.0  # of pixels up to 255
    return {key: [value / least for value in values] for key, values in found.items()}
