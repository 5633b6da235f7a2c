"""The folder of a picture classifier that a model repository does not have yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from gourmet.contracts import (
    LABELS_PARAMETER,
    SYSTEM_PARAMETER,
    TEMPERATURE_PARAMETER,
    THRESHOLD_PARAMETER,
)
from gourmet.pictures.classifier import PictureClassifier

_ROWS: Final = 16


def new_model(
    system: PictureClassifier,
    model: str,
    given: tuple[str, Sequence[int]],
    output: str,
    *,
    batched: bool = True,
) -> Mapping[str, str]:
    """config.pbtxt and labels.txt of an ONNX model; `given` are its input's name and shape of one row.

    Without batches its shapes are whole, with a first dimension of 1.
    """
    name, row = given
    rows, form = ([], " format: FORMAT_NCHW") if batched else ([1], "")
    # A text in a text: JSON's escapes are those of the config's format too.
    labels = json.dumps(json.dumps(list(system.labels), ensure_ascii=False), ensure_ascii=False)
    config = f"""name: "{model}"
backend: "onnxruntime"
max_batch_size: {_ROWS if batched else 0}

input [
  {{ name: "{name}" data_type: TYPE_FP32{form} dims: {[*rows, *row]} }}
]
output [
  {{ name: "{output}" data_type: TYPE_FP32 dims: {[*rows, len(system.labels)]} label_filename: "labels.txt" }}
]

# KIND_AUTO is the GPU where Triton has one and the CPU elsewhere; instances share the CPU's threads.
instance_group [ {{ kind: KIND_AUTO count: 2 }} ]

# Without the manifest.json that `gourmet deploy` writes, no version of it is loaded.
parameters [
  {{ key: "manifest" value: {{ string_value: "required" }} }},
  {{ key: "{SYSTEM_PARAMETER}" value: {{ string_value: "{system.name}" }} }},
  {{ key: "{LABELS_PARAMETER}" value: {{ string_value: {labels} }} }},
  {{ key: "{TEMPERATURE_PARAMETER}" value: {{ string_value: "1.0000" }} }},
  {{ key: "{THRESHOLD_PARAMETER}" value: {{ string_value: "0.0000" }} }}
]
"""
    return {"config.pbtxt": config, "labels.txt": "".join(f"{label}\n" for label in system.labels)}
