"""The health check of both Triton images: every model that a page relies on answers its sample picture.

Standard library, the contracts and gourmet.runtime only, since it also runs in NVIDIA's image, which has no
Triton client in it. Ends with 0, or with 1 and the reason.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import numpy.typing as npt

from gourmet.contracts import ModelInfo, System
from gourmet.errors import GourmetError
from gourmet.runtime.generate import generate
from gourmet.systems import registry

TRITON = "http://127.0.0.1:8000"
TIMEOUT_S = 8.0


class Unhealthy(Exception):
    """A model does not answer as it should."""


def main() -> None:
    # Those that are ready have statistics; Triton's list of all models takes a key.
    ready = {model["name"] for model in json.loads(ask("/v2/models/stats"))["model_stats"]}
    for system in registry.names():
        known = registry.load(system)
        chosen = os.environ.get(known.model_variable)
        model = chosen or known.default_model
        if model not in ready and (chosen or knows(model)):
            raise Unhealthy(f"{model} is not ready")
        # A user's own repository need not hold the default model of every system.
        if model in ready:
            ask_sample(known, model)


def knows(model: str) -> bool:
    """Whether Triton has `model`, ready or not."""
    try:
        ask(f"/v2/models/{model}")
    except Unhealthy as exc:
        return "has no available versions" in str(exc)
    return True


def ask_sample(system: System, model: str) -> None:
    """Have `model` answer its system's sample; Triton answers 200 only where every output is there.

    The words of a model that answers in pieces are also looked at, since those may come after the 200.
    """
    metadata, config = (json.loads(ask(f"/v2/models/{model}{what}")) for what in ("", "/config"))
    info = ModelInfo.from_triton(metadata, config)
    datatypes = {spec.name: spec.datatype for spec in info.inputs}
    tensors = system.request_inputs(system.sample(), info)
    if info.decoupled:
        try:
            answer = generate(TRITON.removeprefix("http://"), info, tensors, TIMEOUT_S)
            system.describe_answer(answer, info)
        except (GourmetError, OSError) as exc:
            raise Unhealthy(f"{model} does not answer: {exc}") from exc
        return
    data = {name: as_bytes(tensor) for name, tensor in tensors.items()}
    inputs = [
        {
            "name": name,
            "datatype": datatypes[name],
            "shape": tensor.shape,
            "parameters": {"binary_data_size": len(data[name])},
        }
        for name, tensor in tensors.items()
    ]
    head = json.dumps({"inputs": inputs}).encode()
    body = head + b"".join(data.values())
    ask(f"/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": str(len(head))})


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
