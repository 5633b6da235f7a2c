"""Triton's queue is bounded in number and time, and the app passes its deadline on."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from support.eventually import eventually
from tritonclient.grpc import model_config_pb2

from app.asking import AppTriton
from app.core.errors import ServingError, TritonBusy, TritonTooSlow
from gourmet.client.deadline import Deadline
from gourmet.client.statistics import ModelStatistics
from gourmet.client.triton import Answer
from gourmet.serving.connect import connect

MODELS = Path(__file__).parents[2] / "triton" / "models"
WORK_S = 1.0
WAITING = 3
MODEL = f"""
import pathlib
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pathlib.Path(__file__).with_name("begun").touch()
        time.sleep({WORK_S})
        rows = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", values)]) for values in rows]
"""


def config_of(model: str) -> Any:
    return text_format.Parse((MODELS / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def policy_of(model: str) -> Any:
    return config_of(model).dynamic_batching.default_queue_policy


@pytest.fixture(scope="module")
def slow(lab_triton: Any) -> Iterator[str]:
    """A model that takes its time, one request after the other, with the queue policy of translator_bls."""
    policy = policy_of("translator_bls")
    policy.max_queue_size = WAITING
    folder = lab_triton.repository / "slow"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 1 instance_group [ { kind: KIND_CPU } ]\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        f"dynamic_batching {{ default_queue_policy {{ {text_format.MessageToString(policy)} }} }}\n"
    )
    _control(lab_triton.http_url, "load")
    yield lab_triton.http_url
    _control(lab_triton.http_url, "unload")


def _control(url: str, action: str) -> None:
    request = urllib.request.Request(f"http://{url}/v2/repository/models/slow/{action}", b"{}")
    urllib.request.urlopen(request, timeout=60).close()


def rows_since(url: str, before: ModelStatistics, expected: int) -> int:
    """Return the number of rows computed since; Triton counts them shortly after its answer."""
    with connect(url) as triton:
        return triton.counted("slow", before, lambda counted: counted.rows >= expected).rows


def ask(triton: AppTriton, seconds: float) -> Answer | ServingError:
    try:
        return triton.infer("slow", {"x": np.zeros((1, 1), np.float32)}, Deadline(seconds))
    except ServingError as error:
        return error


def at_the_same_time(
    triton: AppTriton, repository: Path, deadlines: list[float]
) -> list[Answer | ServingError]:
    """Ask with each deadline; the first is at work when the others come."""
    begun = repository / "slow" / "1" / "begun"
    begun.unlink(missing_ok=True)
    with ThreadPoolExecutor(len(deadlines)) as pool:
        first = pool.submit(ask, triton, deadlines[0])
        eventually(begun.exists)
        others = [pool.submit(ask, triton, seconds) for seconds in deadlines[1:]]
        return [first.result(), *(answer.result() for answer in others)]


def test_an_expired_request_is_not_computed(slow: str, lab_triton: Any) -> None:
    triton = AppTriton(slow)
    with connect(slow) as client:
        before = client.total("slow")
    answers = at_the_same_time(triton, lab_triton.repository, [60, WORK_S / 3, 60])
    assert isinstance(answers[0], Answer)
    assert isinstance(answers[1], TritonTooSlow)
    assert isinstance(answers[2], Answer)
    assert rows_since(slow, before, 2) == 2


def test_requests_beyond_the_queue_limit_are_refused_at_once(slow: str) -> None:
    with connect(slow) as client:
        before = client.total("slow")
    began = time.monotonic()

    def timed(_: int) -> tuple[type, float]:
        return type(ask(AppTriton(slow), 60)), time.monotonic() - began

    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(timed, range(9)))
    assert {kind for kind, _ in answers} == {Answer, TritonBusy}
    refused, answered_at = ([at for result, at in answers if result is kind] for kind in (TritonBusy, Answer))
    assert max(refused) < max(answered_at), "a refused request waited"
    answered = sum(kind is Answer for kind, _ in answers)
    assert answered >= 1 + WAITING
    assert rows_since(slow, before, answered) == answered
