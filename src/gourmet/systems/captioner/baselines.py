"""A captioner as one graph, under the configs of a known student project: to compare with, made on demand.

    pixel_values FP32 [3, 384, 384], input_ids and attention_mask INT64 [-1] -> logits FP32 [-1, V]

It is put together of the package that is deployed, so that the same weights answer: the picture is seen and
all words are read again for every word. Words attend to those before them, so that padding at the end changes
nothing, and `attention_mask`, which tells of it, is not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import compose, helper, numpy_helper

from gourmet.client.model_config import Config
from gourmet.deploying.target import Baselines, Check, Deployment, Target
from gourmet.errors import GourmetError
from gourmet.repository import versions
from gourmet.runtime.decoding import package
from gourmet.systems.captioner.client_loop import MEAN, SIDE, STD
from gourmet.systems.captioner.contract import SYSTEM
from gourmet.systems.captioner.serving import DECODER, VISION
from gourmet.systems.captioner.tokenizer import SETTINGS

_ROWS: Final = 8
_CPU: Final = {"kind": "KIND_CPU"}
_GPU: Final = {"kind": "KIND_GPU", "count": 1, "gpus": [0]}
_TENSORRT: Final = {"execution_accelerators": {"gpu_execution_accelerator": [{"name": "tensorrt"}]}}


def _batching(*preferred: int, delay_us: int = 0) -> Config:
    delay = {"max_queue_delay_microseconds": delay_us} if delay_us else {}
    return {"dynamic_batching": {"preferred_batch_size": list(preferred), **delay}}


# Each with what its config says beside the tensors, and on how many GPUs it runs.
_CONFIGS: Final[Mapping[str, tuple[Config, int]]] = {
    "base_model_cpu": ({"instance_group": [_CPU], **_batching(1, 2, 4, 8, delay_us=1000)}, 0),
    "base_model_gpu": ({"instance_group": [_GPU], **_batching(2, 4, 8)}, 1),
    "base_model_gpu_scheduling": ({"instance_group": [_GPU], **_batching(2, 4, 8, delay_us=1000)}, 1),
    "base_model_multi_gpu": ({"instance_group": [{**_GPU, "gpus": [0, 1]}], **_batching(2, 4, 8)}, 2),
    "trt_model": ({"instance_group": [_GPU], "optimization": _TENSORRT, **_batching(2, 4, 8)}, 1),
}


# Back to the pixels that the vision graph takes, and all that a first step needs.
_BEFORE: Final = """
<ir_version: 8, opset_import: ["" : 17]>
before (float[rows, 3, SIDE, SIDE] pixel_values, int64[rows, words] input_ids,
        int64[rows, words] attention_mask)
  => (uint8[rows, SIZE, SIZE, 3] pixels, int64[rows, words] token, int64[rows, 1] length,
      float[rows, LAYERS, 2, HEADS, 0, NUMBERS] cache, int32[rows, PLACES] mask) {
  scaled = Mul(pixel_values, std)
  levels = Add(scaled, mean)
  small = AveragePool<kernel_shape = [TIMES, TIMES], strides = [TIMES, TIMES]>(levels)
  whole = Round(small)
  dark = Constant<value_float = 0.0>()
  light = Constant<value_float = 255.0>()
  within = Clip(whole, dark, light)
  bytes = Cast<to = 2>(within)
  pixels = Transpose<perm = [0, 2, 3, 1]>(bytes)
  first = Constant<value_int = 0>()
  last = Constant<value_int = LAST>()
  token = Clip(input_ids, first, last)
  count = Shape<start = 0, end = 1>(input_ids)
  one = Constant<value_ints = [1]>()
  lengths = Concat<axis = 0>(count, one)
  length = ConstantOfShape<value = int64[1] {0}>(lengths)
  nothing = Constant<value_ints = [LAYERS, 2, HEADS, 0, NUMBERS]>()
  caches = Concat<axis = 0>(count, nothing)
  cache = ConstantOfShape<value = float[1] {0}>(caches)
  places = Constant<value_ints = [PLACES]>()
  masks = Concat<axis = 0>(count, places)
  mask = ConstantOfShape<value = int32[1] {1}>(masks)
}"""


def whole(files: Mapping[str, bytes]) -> onnx.ModelProto:
    """Both graphs of a package as one, from normalised pixels to logits."""
    settings = json.loads(files[SETTINGS])
    vision, decoder = (onnx.load_model_from_string(files[name]) for name in (VISION, DECODER))
    before = _before(int(settings["size"]), int(settings["places"]), decoder)
    newest = max(each.ir_version for each in (vision, decoder))
    graphs = [before, compose.add_prefix(vision, "v/"), compose.add_prefix(decoder, "d/")]
    for each in graphs:
        each.ir_version = newest
    before, vision, decoder = graphs
    given = ["token", "length", "cache", "mask"]
    seen = compose.merge_models(before, vision, [("pixels", "v/pixels")], outputs=[*given, "v/memory"])
    io_map = [*((name, f"d/{name}") for name in given), ("v/memory", "d/memory")]
    found = compose.merge_models(seen, decoder, io_map, outputs=["d/logits"])
    (logits,) = found.graph.output
    found.graph.node.append(helper.make_node("Identity", [logits.name], ["logits"]))
    logits.name = "logits"
    onnx.checker.check_model(found, full_check=True)
    return found


def _before(size: int, places: int, decoder: onnx.ModelProto) -> onnx.ModelProto:
    if SIDE % size:
        raise GourmetError(f"pictures of {SIDE} pixels cannot be made {size} by whole steps")
    _, layers, _, heads, _, numbers = _shape(decoder, "cache")
    sizes = {
        "SIDE": SIDE,
        "SIZE": size,
        "TIMES": SIDE // size,
        "LAYERS": layers,
        "HEADS": heads,
        "NUMBERS": numbers,
        "PLACES": places,
        "LAST": _shape(decoder, "logits")[-1] - 1,
    }
    text = re.sub("|".join(sizes), lambda found: str(sizes[found[0]]), _BEFORE)
    found = onnx.parser.parse_model(text)
    for name, values in (("mean", MEAN), ("std", STD)):
        levels = 255 * np.array(values, np.float32).reshape(1, 3, 1, 1)
        found.graph.initializer.append(numpy_helper.from_array(levels, name))
    return found


def _shape(model: onnx.ModelProto, tensor: str) -> list[int]:
    of = {each.name: each for each in (*model.graph.input, *model.graph.output)}[tensor]
    return [each.dim_value for each in of.type.tensor_type.shape.dim]


class CaptionerBaselines:
    """Fulfils `gourmet.deploying.target.Baselines`."""

    formats = tuple(_CONFIGS)

    def open(self, models: Path) -> Deployment:
        folder = models / SYSTEM.default_model
        if not folder.is_dir() or not versions(folder):
            raise GourmetError(f"{models} has no {SYSTEM.default_model} to make it of: deploy that first")
        model = whole(package.read(folder / str(versions(folder)[-1]) / package.FILE))
        targets = {name: _target(name, *about, model) for name, about in _CONFIGS.items()}
        return Deployment(targets=targets, facts={"network": {"system": SYSTEM.name}})


def _target(name: str, config: Config, gpus: int, model: onnx.ModelProto) -> Target:
    logits = _shape(model, "logits")[-1]
    words = [
        {"name": each, "data_type": "TYPE_INT64", "dims": [-1]} for each in ("input_ids", "attention_mask")
    ]
    pixels = {"name": "pixel_values", "data_type": "TYPE_FP32", "dims": [3, SIDE, SIDE]}
    tensors = {
        "max_batch_size": _ROWS,
        "input": [{**pixels, "format": "FORMAT_NCHW"}, *words],
        "output": [{"name": "logits", "data_type": "TYPE_FP32", "dims": [-1, logits]}],
    }
    parameters = {
        key: {"string_value": value} for key, value in (("load", "asked"), ("manifest", "required"))
    }
    whole_config = {"name": name, "backend": "onnxruntime", **tensors, **config, "parameters": parameters}
    return Target(name, "model.onnx", partial(_write, model), partial(_words, model), whole_config, gpus=gpus)


def _write(model: onnx.ModelProto, path: Path) -> dict[str, Any]:
    onnx.save(model, path)
    return {"form": "ONNX, of the package that is deployed"}


def _words(model: onnx.ModelProto, path: Path) -> Sequence[Check]:
    """That what comes later changes nothing of what came before, which a loop in a client counts on."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    pixels = draw.normal(size=(1, 3, SIDE, SIDE)).astype(np.float32)
    ids = draw.integers(0, _shape(model, "logits")[-1], (1, 16))
    found = [
        session.run(
            ["logits"], {"pixel_values": pixels, "input_ids": each, "attention_mask": np.ones_like(each)}
        )[0]
        for each in (ids, ids[:, :5])
    ]
    apart = float(np.abs(found[0][:, :5] - found[1]).max())
    return [Check("words do not look ahead", f"{apart:.1e} apart", "at most 1e-03", apart <= 1e-3)]


BASELINES: Final[Baselines] = CaptionerBaselines()
