"""Tensors reach a Triton of the same machine in shared memory, any other one as bytes."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from gourmet.systems.food11 import contract


def _regions(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{url}/v2/systemsharedmemory/status", timeout=10) as answer:
        return [region for region in json.load(answer) if region["name"].startswith("web-")]


def test_a_photo_s_tensor_lies_in_memory_that_triton_was_told_of_also_once_it_has_forgotten_it(
    triton: Any, onnx_web: Any, sample: bytes
) -> None:
    tensor = contract.SYSTEM.encode(sample, "FP32")
    labels = []
    for _ in range(2):
        answer = onnx_web.predict(sample)
        labels.append((answer.status, answer.json["label"], answer.json["probability"]))
        regions = _regions(triton.http_url)
        forget = urllib.request.Request(
            f"http://{triton.http_url}/v2/systemsharedmemory/unregister", b"", method="POST"
        )
        urllib.request.urlopen(forget, timeout=10).close()
    assert labels[0][0] == 200
    assert labels[0] == labels[1]
    assert tensor.nbytes in [region["byte_size"] for region in regions]
