"""Tensors reach a Triton of the same machine in shared memory, any other one as bytes."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from app.asking import AppTriton
from gourmet.client.deadline import Deadline
from gourmet.client.triton import Triton
from gourmet.systems.food11 import contract

MODEL, INPUT = "food_classifier_onnx", "input"


def _regions(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{url}/v2/systemsharedmemory/status", timeout=10) as answer:
        return [region for region in json.load(answer) if region["name"].startswith("web-")]


def test_a_photo_s_tensor_lies_in_memory_that_triton_was_told_of(
    triton: Any, onnx_web: Any, sample: bytes
) -> None:
    assert onnx_web.predict(sample).status == 200
    tensor = contract.SYSTEM.encode(sample, "FP32")
    assert tensor.nbytes in [region["byte_size"] for region in _regions(triton.http_url)]


def test_the_answer_is_the_same_as_of_bytes_also_once_triton_has_forgotten_the_memory(
    triton: Any, sample: bytes
) -> None:
    tensor = contract.SYSTEM.encode(sample, "FP32")
    sharing, sending = AppTriton(triton.http_url), Triton.at(triton.http_url)
    sent = sending.infer(MODEL, {INPUT: tensor}, Deadline(60)).outputs["output"]
    for forgotten in (False, True, False):
        if forgotten:
            request = urllib.request.Request(
                f"http://{triton.http_url}/v2/systemsharedmemory/unregister", b"", method="POST"
            )
            urllib.request.urlopen(request, timeout=10).close()
        shared = sharing.infer(MODEL, {INPUT: tensor}, Deadline(60)).outputs["output"]
        assert shared.tolist() == sent.tolist()
