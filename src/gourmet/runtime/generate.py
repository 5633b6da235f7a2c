"""Triton's generate extension without a client library: inputs as JSON, and an answer piece by piece.

It is the way over HTTP to models that answer in several pieces, which plain inference refuses.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from gourmet.contracts import Array, ModelInfo, Tensors
from gourmet.errors import GourmetError

_EVENT: Final = b"data:"


class GenerateError(GourmetError):
    """Triton refused the request, or broke off its answer; in its own words."""


def request_body(inputs: Tensors, request_id: str = "") -> bytes:
    """One request; texts are UTF-8."""
    said = {"id": request_id} if request_id else {}
    return json.dumps(said | {name: _plain(values) for name, values in inputs.items()}).encode()


def pieces(events: Iterable[bytes], model: ModelInfo) -> Iterator[dict[str, Array]]:
    """The outputs of each server-sent event in an answer's lines; raise GenerateError for an error."""
    for line in events:
        if line.startswith(_EVENT):
            told = json.loads(line.removeprefix(_EVENT))
            if "error" in told:
                raise GenerateError(str(told["error"]))
            yield {
                spec.name: _array(told[spec.name], spec.datatype)
                for spec in model.outputs
                if spec.name in told
            }


def joined(parts: Sequence[Tensors]) -> dict[str, Array]:
    """The whole answer: texts one after another, and of everything else what came last."""
    whole: dict[str, Array] = {}
    for part in parts:
        for name, values in part.items():
            texts = values.dtype == np.object_ and name in whole and whole[name].shape == values.shape
            whole[name] = whole[name] + values if texts else values
    return whole


def stream(url: str, model: ModelInfo, inputs: Tensors, timeout_s: float) -> Iterator[dict[str, Array]]:
    """The pieces of an answer of the Triton at `url` (host:port); raise GenerateError or OSError."""
    request = urllib.request.Request(
        f"http://{url}/v2/models/{model.name}/generate_stream", request_body(inputs)
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            yield from pieces(answer, model)
    except urllib.error.HTTPError as exc:
        with exc:
            raise GenerateError(exc.read().decode(errors="replace")) from exc


def generate(url: str, model: ModelInfo, inputs: Tensors, timeout_s: float) -> dict[str, Array]:
    """The whole answer of a model, its pieces put together."""
    parts = list(stream(url, model, inputs, timeout_s))
    if not parts:
        raise GenerateError(f"{model.name!r} ended its answer without any piece of it")
    return joined(parts)


def _plain(values: Array) -> Any:
    flat = values.ravel().tolist()
    return [item.decode() if isinstance(item, bytes) else item for item in flat]


def _array(value: Any, datatype: str) -> Array:
    items = value if isinstance(value, list) else [value]
    if datatype == "BYTES":
        texts = np.empty(len(items), np.object_)
        texts[:] = [str(item).encode() for item in items]
        return texts
    return np.array(items, np.dtype(datatype.replace("FP", "FLOAT").lower()))
