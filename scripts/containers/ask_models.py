"""The health check of both Triton images: every model that a page relies on answers its sample picture.

Standard library and the systems' contracts only, since it also runs in NVIDIA's image, which has no
Triton client in it. Ends with 0, or with 1 and the reason.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gourmet.systems import registry

TRITON = "http://127.0.0.1:8000"
TIMEOUT_S = 8.0


class Unhealthy(Exception):
    """A model does not answer as it should."""


def main() -> None:
    # Those that are ready have statistics; Triton's list of all models takes a key.
    ready = {model["name"] for model in json.loads(ask("/v2/models/stats"))["model_stats"]}
    for system in registry.names():
        contract = registry.room(system, "contract")
        chosen = os.environ.get(contract.MODEL_ENV)
        model = chosen or contract.DEFAULT_MODEL
        if model not in ready and (chosen or knows(model)):
            raise Unhealthy(f"{model} is not ready")
        # A repository of somebody's own need not hold the usual model of every system.
        if model in ready:
            ask_sample(contract, model)


def knows(model: str) -> bool:
    """Whether Triton has `model`, ready or not."""
    try:
        ask(f"/v2/models/{model}")
    except Unhealthy as exc:
        return "has no available versions" in str(exc)
    return True


def ask_sample(contract: ModuleType, model: str) -> None:
    """Have `model` answer its system's sample; Triton answers 200 only where every output is there."""
    wanted = json.loads(ask(f"/v2/models/{model}"))["inputs"][0]
    tensor = contract.encode(contract.sample(), wanted["datatype"])
    data = as_bytes(tensor)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": wanted["name"],
                    "datatype": wanted["datatype"],
                    "shape": tensor.shape,
                    "parameters": {"binary_data_size": len(data)},
                }
            ]
        }
    ).encode()
    ask(f"/v2/models/{model}/infer", head + data, {"Inference-Header-Content-Length": str(len(head))})


def as_bytes(tensor: npt.NDArray[Any]) -> bytes:
    """A tensor as Triton's binary extension wants it: strings carry their length in front."""
    if tensor.dtype != np.object_:
        return tensor.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in tensor.ravel())


def ask(path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """What Triton answers to a GET, or to a POST of `body`."""
    request = urllib.request.Request(TRITON + path, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as exc:
        raise Unhealthy(f"{path} answered {exc.code}: {exc.read().decode(errors='replace')}") from exc
    except OSError as exc:
        raise Unhealthy(f"no Triton answers at {TRITON}: {exc}") from exc


if __name__ == "__main__":
    try:
        main()
    except Unhealthy as reason:
        sys.exit(str(reason))
