"""The config.pbtxt of a deployed network, as Triton's own message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gourmet.config_change import Config, as_pbtxt
from gourmet.contracts import LABELS_PARAMETER
from gourmet.errors import UsageError
from gourmet.runtime.manifest import PARAMETER, REQUIRED
from gourmet.tasks.classification.deployer.formats import INPUT, OUTPUT

LABELS_FILE: Final = "labels.txt"


@dataclass(frozen=True)
class Serving:
    """How Triton is to serve a model; a delay of 0 or less is static batching."""

    max_batch_size: int = 8
    delay_ms: float = 0.0
    engines: int = 1
    cpu: bool = False  # and nowhere else; where not, a GPU if Triton has one
    cuda_graphs: bool = True  # TensorRT alone has them

    def __post_init__(self) -> None:
        if self.delay_ms > 0 and self.max_batch_size < 1:
            raise UsageError(
                f"--triton-dyn-batching-delay {self.delay_ms:g} needs a --triton-max-batch-size of at least "
                f"1: {self.max_batch_size} has Triton put no requests together"
            )


def folder_files(
    name: str,
    backend: str,
    platform: str,
    serving: Serving,
    *,
    half: bool,
    side: int,
    outputs: int,
    labels: Sequence[str] = (),
    by_capability: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The files of a model's folder beside its versions."""
    batched = serving.max_batch_size > 0
    rows = [] if batched else [-1]
    kind = "TYPE_FP16" if half else "TYPE_FP32"
    given: Config = {"name": INPUT, "data_type": kind, "dims": [*rows, 3, side, side]}
    if batched:
        given["format"] = "FORMAT_NCHW"
    answer: Config = {"name": OUTPUT, "data_type": kind, "dims": [*rows, outputs]}
    if labels:
        answer["label_filename"] = LABELS_FILE
    config: Config = {
        "name": name,
        "backend": backend,
        "platform": platform,
        "max_batch_size": serving.max_batch_size,
        "input": [given],
        "output": [answer],
        "instance_group": [
            {"count": serving.engines, "kind": "KIND_CPU" if serving.cpu else "KIND_AUTO"},
        ],
        # Without the manifest.json that the deployer writes, no version of it is loaded.
        "parameters": {PARAMETER: {"string_value": REQUIRED}},
    }
    if labels:
        config["parameters"][LABELS_PARAMETER] = {"string_value": json.dumps(labels, ensure_ascii=False)}
    if serving.delay_ms > 0:
        full = serving.max_batch_size
        config["dynamic_batching"] = {
            "preferred_batch_size": sorted({max(1, full // 2), full}),
            "max_queue_delay_microseconds": round(1000 * serving.delay_ms),
        }
    if by_capability:
        config["cc_model_filenames"] = dict(by_capability)
    if platform == "tensorrt_plan":
        config["optimization"] = {"cuda": {"graphs": serving.cuda_graphs}}
    return {
        "config.pbtxt": as_pbtxt(config),
        **({LABELS_FILE: "".join(f"{label}\n" for label in labels)} if labels else {}),
    }
