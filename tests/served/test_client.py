"""Everything that is asked of a Triton, of a real one, over HTTP and over gRPC alike."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.made_models import python_model, tensors
from support.triton import RunningTriton

from gourmet.repository.models import DEFAULT_REPOSITORY, read_config
from gourmet.systems.digits import contract
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import (
    InvalidRequest,
    ModelFailed,
    ModelUnavailable,
    NoAnswerInTime,
    NotTriton,
    TritonUnreachable,
)
from gourmet.triton_client.model_config import as_json
from gourmet.triton_client.tensors import joined
from gourmet.triton_client.triton import Triton

MODEL = "digits"
SPELLER = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().item()
            sender = request.get_response_sender()
            for number, letter in enumerate(text.decode()):
                if letter == "!":
                    error = pb_utils.TritonError("no more letters")
                    sender.send(pb_utils.InferenceResponse(error=error))
                    break
                if letter == ".":
                    time.sleep(2)
                outputs = [
                    pb_utils.Tensor("letter", np.array([letter.encode()], np.object_)),
                    pb_utils.Tensor("number", np.array([number], np.int32)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = (
    *("model_transaction_policy { decoupled: true }", tensors("input", "text", kind="STRING", dims=[1])),
    *(
        tensors("output", "letter", kind="STRING", dims=[1]),
        tensors("output", "number", kind="INT32", dims=[1]),
    ),
)


@pytest.fixture(scope="module")
def server(lab_triton: RunningTriton) -> Iterator[RunningTriton]:
    models = lab_triton.repository
    shutil.copytree(DEFAULT_REPOSITORY / MODEL, models / MODEL)
    python_model(models / "speller", SPELLER, *CONFIG)
    with Triton(lab_triton.http_url, 60.0) as client:
        for name in (MODEL, "speller"):
            client.load(name)
        yield lab_triton
        for name in (MODEL, "speller"):
            client.unload(name)
            shutil.rmtree(models / name)


@pytest.fixture(params=["http", "grpc"])
def client(server: RunningTriton, request: pytest.FixtureRequest) -> Iterator[Triton]:
    url = server.http_url if request.param == "http" else f"grpc://{server.grpc_url}"
    with Triton(url, 60.0) as client:
        yield client


def inputs(client: Triton) -> Any:
    return contract.SYSTEM.request_inputs(contract.SYSTEM.sample(), client.describe(MODEL))


def test_the_client_describes_the_server_and_a_model(client: Triton) -> None:
    assert client.is_live()
    assert client.version() == "triton 2.51.0"
    info = client.describe(MODEL)
    assert (info.name, info.system, info.decoupled) == (MODEL, "digits", False)
    assert (info.version, info.max_batch_size) == ("1", client.config(MODEL)["max_batch_size"])
    assert client.describe("speller").decoupled
    assert {MODEL, "speller"} <= set(client.ready_models())


def test_the_answers_of_a_model_are_counted(client: Triton, server: RunningTriton) -> None:
    before = client.total(MODEL)
    answer = client.infer(MODEL, inputs(client), request_id="mine")
    with Triton(server.http_url) as other:
        assert {
            name: values.tolist() for name, values in other.infer(MODEL, inputs(other)).outputs.items()
        } == {name: values.tolist() for name, values in answer.outputs.items()}
    assert answer.model_version == "1"
    assert "the sample is 3" in contract.SYSTEM.describe_answer(answer.outputs, client.describe(MODEL))
    # Triton counts a request a little after it answered.
    assert client.counted(MODEL, before, lambda counted: counted.rows >= 2).rows == 2


def test_models_come_and_go_with_a_config_of_their_own(client: Triton) -> None:
    config = client.config(MODEL) | {"max_batch_size": 64}
    assert client.load(MODEL, config)
    assert client.describe(MODEL).max_batch_size == 64
    client.unload(MODEL)
    assert not client.is_ready(MODEL)
    assert client.index()[MODEL]["state"] != "READY"
    with pytest.raises(ModelUnavailable, match=r"'digits' is not ready.*ready are .*speller"):
        client.describe(MODEL)
    with pytest.raises(ModelUnavailable, match="'digits' is not ready"):
        client.infer(MODEL, {"x": np.zeros(1, np.float32)})
    client.load(MODEL, as_json(read_config(DEFAULT_REPOSITORY / MODEL)))
    assert client.is_ready(MODEL)


def test_inputs_that_the_model_does_not_take_are_refused(client: Triton) -> None:
    with pytest.raises(InvalidRequest, match="nonsense"):
        client.infer(MODEL, {"nonsense": np.zeros((1, 3), np.float32)})
    with pytest.raises(ModelUnavailable, match="'soup' is not ready"):
        client.infer("soup", inputs(client))


def spelled(client: Triton, text: str, seconds: float = 30.0) -> list[Any]:
    tensors = {"text": np.array([text.encode()], np.object_)}
    return list(client.stream(client.describe("speller"), tensors, Deadline(seconds)))


def test_an_answer_comes_in_pieces(client: Triton) -> None:
    pieces = spelled(client, "чай")
    assert [piece["number"].tolist() for piece in pieces] == [[0], [1], [2]]
    assert pieces[0]["number"].dtype == np.int32
    assert joined(pieces)["letter"].tolist() == ["чай".encode()]
    whole = client.generate(client.describe("speller"), {"text": np.array(["чай".encode()], np.object_)})
    assert whole["letter"].tolist() == ["чай".encode()]


def test_a_broken_stream_has_a_reason_and_a_slow_one_times_out(client: Triton) -> None:
    with pytest.raises(ModelFailed, match="no more letters"):
        spelled(client, "a!")
    with pytest.raises(NoAnswerInTime):
        spelled(client, "a.", 0.5)


def test_an_unreachable_server_and_one_that_is_not_triton_are_distinguished(server: RunningTriton) -> None:
    for url in ("127.0.0.1:9", "grpc://127.0.0.1:9"):
        with Triton(url) as nobody, pytest.raises(TritonUnreachable, match=r"127\.0\.0\.1:9"):
            nobody.describe(MODEL)
    with Triton(server.grpc_url) as other, pytest.raises(NotTriton):
        other.describe(MODEL)
