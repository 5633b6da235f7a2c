"""Refusals of the Open Inference Protocol; a listener plays Triton."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.listener import Listen, answered, listen, ready, serving, tensor

from app import create_app
from app.web.settings import Settings
from gourmet.systems.food11.contract import SYSTEM

__all__ = ["listen"]  # the fixture

NAME = SYSTEM.default_model
INFER = f"/v2/models/{NAME}/infer"


@pytest.fixture
def browser(listen: Listen) -> FlaskClient:
    photo, answer = (
        tensor("INPUT_IMAGE", "BYTES", shape=(-1, 1)),
        tensor("PROBABILITIES", "FP32", shape=(-1, 11)),
    )
    infer = answered([0.0] * 10 + [1.0])
    script = serving(NAME, [photo], [answer], infer, max_batch_size=16) | ready(NAME)
    return create_app(Settings(triton_url=listen(script).url, max_photos=4)).test_client()


def described(**changes: Any) -> dict[str, Any]:
    return {"name": "INPUT_IMAGE", "shape": [1, 1], "datatype": "BYTES", "data": ["x"], **changes}


def post(browser: FlaskClient, body: bytes, **headers: Any) -> tuple[int, str]:
    reply = browser.post(INFER, data=body, headers=headers)
    return reply.status_code, (reply.get_json() or {}).get("error", "")


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"name": "other"}, 400, "food_classifier takes INPUT_IMAGE, and these are other"),
        ({"shape": [1, 2]}, 400, "takes BYTES [-1, 1]"),
        ({"shape": [2, 1]}, 400, "not a tensor of shape [2, 1]"),
        ({"shape": [0, 1]}, 400, "takes BYTES [-1, 1]"),
        ({"shape": [1 << 31, 1]}, 413, "send at most 4"),
        ({"datatype": "FP32"}, 400, "takes BYTES"),
        ({"data": None, "parameters": {"binary_data_size": 4}}, 400, "it is too short"),
        ({"parameters": {"shared_memory_region": "x"}}, 400, "shared_memory_region"),
        ({"data": list(range(200_002))}, 413, "as binary data"),
        ({"data": ["x" * 11_000_000]}, 413, "larger than 10 MB"),
    ],
)
def test_a_bad_request_is_refused_with_the_reason(
    browser: FlaskClient, change: dict[str, Any], status: int, words: str
) -> None:
    refused = post(browser, json.dumps({"inputs": [described(**change)]}).encode())
    assert (refused[0], words in refused[1]) == (status, True), refused


def test_binary_tensors_have_to_add_up(browser: FlaskClient) -> None:
    head = json.dumps({"inputs": [described(data=None, parameters={"binary_data_size": 6})]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    for tail, words in [(b"\x09\0\0\0xx", "do not add up"), (b"\x02\0\0\0xxyy", "the request describes 6")]:
        status, message = post(browser, head + tail, **length)
        assert (status, words in message) == (400, True), message
    assert post(browser, head, **{"Inference-Header-Content-Length": "9999"})[0] == 400
    assert post(browser, head + b"\x02\0\0\0xx", **length)[0] == 200


def test_an_output_that_the_model_lacks_is_refused(browser: FlaskClient) -> None:
    body = json.dumps({"inputs": [described()], "outputs": [{"name": "other"}]}).encode()
    assert post(browser, body) == (400, "food_classifier has no output other; it has PROBABILITIES")


def test_an_unknown_model_is_404_and_a_probe_gets_no_cookie(listen: Listen) -> None:
    app = create_app(Settings(triton_url=listen(ready(NAME)).url, api_keys=("a-key-of-the-tests-only",)))
    browser = app.test_client()
    reply = browser.get("/v2/models/nobody/ready", headers={"X-API-Key": "a-key-of-the-tests-only"})
    assert (reply.status_code, "'nobody' is not available" in reply.get_json()["error"]) == (404, True)
    assert browser.get("/v2/models/nobody/ready").status_code == 401
    assert "Set-Cookie" not in browser.get("/v2/health/live").headers


def test_kserve_s_client_is_understood(browser: FlaskClient) -> None:
    """It reads the bodies of the health routes, and repeats the model's name."""
    assert post(browser, json.dumps({"model_name": NAME, "inputs": [described()]}).encode())[0] == 200
    assert browser.get("/v2/health/live").json == {"live": True}
    assert browser.get("/v2/health/ready").json == {"ready": True}
    assert browser.get(f"/v2/models/{NAME}/ready").json == {"name": NAME, "ready": True}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v2/unknown"), ("POST", "/v2/repository/index"), ("GET", INFER)]
)
def test_an_unknown_path_or_method_is_answered_in_the_protocols_form(
    browser: FlaskClient, method: str, path: str
) -> None:
    reply = browser.open(path, method=method, headers={"Accept": "text/html"})
    assert (reply.status_code, type(reply.get_json()["error"])) == (405 if path == INFER else 404, str)
