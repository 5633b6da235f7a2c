"""The config of a model that a repository does not have yet, in the form that Triton's own answers have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from gourmet.client.model_config import Config
from gourmet.runtime.manifest import PARAMETER, REQUIRED

LABELS_FILE: Final = "labels.txt"


def tensor(
    name: str,
    data_type: str,
    dims: Sequence[int],
    *,
    layout: str = "",
    has_labels: bool = False,
) -> Config:
    """An input or an output; its dims are those of one row where the model batches.

    Pictures have a `layout`, NCHW or NHWC.
    """
    return {
        "name": name,
        "data_type": f"TYPE_{data_type}",
        "dims": list(dims),
        **({"format": f"FORMAT_{layout}"} if layout else {}),
        **({"label_filename": LABELS_FILE} if has_labels else {}),
    }


def model_config(
    name: str,
    backend: str,
    max_batch_size: int,
    given: Config,
    answer: Config,
    *,
    kind: Literal["AUTO", "CPU"] = "AUTO",
    instances: int,
    parameters: Mapping[str, str],
) -> Config:
    """How Triton serves a model; `max_batch_size` 0 is a model whose tensors have all their dims."""
    # Without the manifest.json that is written with it, no version of it is loaded.
    parameters = {PARAMETER: REQUIRED, **parameters}
    return {
        "name": name,
        "backend": backend,
        "max_batch_size": max_batch_size,
        "input": [given],
        "output": [answer],
        # AUTO is the GPU where Triton has one, and the CPU elsewhere.
        "instance_group": [{"kind": f"KIND_{kind}", "count": instances}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
