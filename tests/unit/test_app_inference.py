"""Servers that are not Triton or answer badly, and the Open Inference Protocol; a listener plays Triton."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from support.listener import Listen, answered, http, ready, serving, tensor

from app import create_app
from app.models import Classifier, request_to_model
from app.web.errors import ServingError, as_serving_error
from app.web.settings import Settings
from gourmet.errors import GourmetError
from gourmet.pictures import header
from gourmet.pictures.errors import PictureError
from gourmet.systems.digits.contract import SYSTEM as DIGITS
from gourmet.systems.food11 import contract
from gourmet.systems.food11.contract import SYSTEM
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.triton import Triton

METADATA = {
    "name": "m",
    "versions": ["1"],
    "inputs": [{"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [{"name": "PROBABILITIES", "datatype": "FP32", "shape": [-1, 11]}],
}
CONFIG = {"parameters": {"threshold": {"string_value": "0.5"}, "temperature": {"string_value": "1.0"}}}


GOOD = {
    "/ready": http({}),
    "/config": http(CONFIG),
    "/infer": answered([0.0] * 10 + [1.0]),
    "/m": http(METADATA),
}


def classifier_of(triton: Triton, model: str = "m") -> Classifier:
    return Classifier(triton, {"food11": contract.SYSTEM, "digits": DIGITS}, {"food11": model, "digits": "d"})


def classify(url: str, deadline_s: float = 60.0, connect_s: float = 30.0) -> object:
    return classifier_of(Triton(url, connect_timeout_s=connect_s)).classify(
        contract.SYSTEM.sample(), Deadline(deadline_s)
    )


def failure(ask: Callable[[], object]) -> ServingError:
    """Return the error that a visitor sees for what `ask` raises."""
    with pytest.raises((GourmetError, PictureError)) as caught:
        ask()
    return as_serving_error(caught.value)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "triton_unavailable"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "inference_failed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "inference_failed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[[", "inference_failed"),
        (http({}, "404 Not Found"), "inference_failed"),
    ],
)
def test_an_invalid_answer_is_an_error_and_is_not_retried(listen: Listen, answer: bytes, code: str) -> None:
    listener = listen(answer, ends_each=True)
    assert failure(lambda: classify(listener.url)).code == code
    assert len(listener.asked) == len(set(listener.asked))


@pytest.mark.parametrize(
    "values", [[1.0] * 10, [1.0] * 22, [float("nan")] * 11], ids=["too few", "two rows", "not a number"]
)
def test_probabilities_that_cannot_be_are_an_error(listen: Listen, values: list[float]) -> None:
    listener = listen(GOOD | {"/infer": answered(values)})
    assert failure(lambda: classify(listener.url)).code == "inference_failed"


def test_a_model_with_other_inputs_is_refused_with_their_names(listen: Listen) -> None:
    text = {"name": "TEXT", "datatype": "INT64", "shape": [-1, 7]}
    listener = listen(GOOD | {"/m": http(METADATA | {"inputs": [text]})})
    error = failure(lambda: classify(listener.url))
    assert error.code == "inference_failed"
    assert re.search(r"TEXT INT64 \[-1, 7\].*FOOD11_MODEL_NAME", str(error))


def test_a_config_with_a_threshold_that_is_no_number_is_an_error(listen: Listen) -> None:
    config = {"parameters": {"threshold": {"string_value": "high"}}}
    listener = listen(GOOD | {"/config": http(config)})
    error = failure(lambda: classify(listener.url))
    assert error.code == "inference_failed"
    assert "threshold = 'high'" in str(error)


def test_a_server_behind_a_balancer_that_lacks_the_model_is_not_taken_for_a_busy_one(listen: Listen) -> None:
    lacks = {"error": "Request for unknown model: 'm' version 2 is not at ready state"}
    others = {"/index": http([]), "/stats": http({"model_stats": []})}
    listener = listen(GOOD | others | {"/infer": http(lacks, "503 Service Unavailable")})
    assert failure(lambda: classify(listener.url)).code == "model_not_ready"


def test_an_ensemble_without_its_step_is_reported_by_the_name_of_the_step(listen: Listen) -> None:
    lacks = {"error": "in m: Request for unknown model: 'm_decoder' is not found"}
    listener = listen(GOOD | {"/infer": http(lacks, "500 Internal")})
    error = failure(lambda: classify(listener.url))
    assert error.code == "inference_failed"
    assert "m_decoder" in str(error)


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            "INPUT_IMAGE row 0 of 1: this JPEG cannot be decoded: it ends early [broken_picture]",
            "broken_picture",
            "this JPEG cannot be decoded: it ends early",
        ),
        ("in ensemble 'x', INPUT_IMAGE row 0 of 1: too much [too_complex]", "too_complex", "too much"),
        ("INPUT_IMAGE row 0 of 1: odd [unheard_of]", "broken_picture", "the model could not decode"),
        ("unexpected shape for input 'INPUT_IMAGE'", "broken_picture", "the model could not decode"),
    ],
)
def test_an_error_of_a_model_that_decodes_reads_like_one_of_the_app(
    listen: Listen, said: str, code: str, message: str
) -> None:
    listener = listen(GOOD | {"/infer": http({"error": said}, "400 Bad Request")})
    error = failure(lambda: classify(listener.url))
    assert error.code == code
    assert str(error).startswith(message)
    assert "INPUT_IMAGE" not in str(error)


def test_a_photo_is_read_once_when_triton_goes_away(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen(dict(GOOD))
    classifier = classifier_of(Triton(listener.url))
    classifier.classify(contract.SYSTEM.sample(), Deadline(5))
    listener.script["/infer"] = b""
    parsed: list[bytes] = []
    parse_header = header.read_markers
    monkeypatch.setattr(header, "read_markers", lambda data: parsed.append(data) or parse_header(data))
    error = failure(lambda: classifier.classify(contract.SYSTEM.sample(), Deadline(5)))
    assert (error.code, len(parsed)) == ("triton_unavailable", 1)
    assert failure(lambda: classifier.classify(b"text", Deadline(5))).code == "not_a_picture"
    never_seen = classifier_of(Triton("127.0.0.1:9", connect_timeout_s=1.0))
    assert failure(lambda: never_seen.classify(b"text", Deadline(2))).code == "not_a_picture"


def test_a_400_from_a_tensor_model_is_not_reported_as_a_bad_picture(listen: Listen) -> None:
    image = {"name": "input", "datatype": "FP32", "shape": [-1, 3, 224, 224]}
    script = {"/m": http(METADATA | {"inputs": [image]}), "/infer": http({"error": "no"}, "400 Bad Request")}
    assert failure(lambda: classify(listen(GOOD | script).url)).status == 502


@pytest.mark.promise("README: the app asks Triton what a model takes")
def test_a_model_that_was_replaced_is_asked_in_the_new_way(listen: Listen) -> None:
    listener = listen(dict(GOOD))
    classifier = classifier_of(Triton(listener.url))
    assert classifier.classify(contract.SYSTEM.sample(), Deadline(5)).version == "1"
    image = {"name": "image", "datatype": "UINT8", "shape": [-1, 224, 224, 3]}
    pixels = METADATA | {"inputs": [image], "outputs": []}
    listener.script |= {"/m": http(pixels), "/infer": http({"error": "unexpected input"}, "400 Bad Request")}
    listener.asked.clear()
    error = failure(lambda: classifier.classify(contract.SYSTEM.sample(), Deadline(5)))
    assert error.code == "inference_failed"
    assert [path for path in listener.asked if path.endswith("/infer")] == ["/v2/models/m/infer"] * 2


def test_the_threshold_of_a_new_version_is_read_again(listen: Listen) -> None:
    listener = listen(dict(GOOD))
    classifier = classifier_of(Triton(listener.url))
    assert classifier.classify(contract.SYSTEM.sample(), Deadline(5)).threshold == 0.5
    config = {"parameters": {"threshold": {"string_value": "0.75"}}}
    listener.script |= {"/config": http(config), "/infer": answered([1.0] + [0.0] * 10, "2")}
    listener.script["/versions/2"] = http(METADATA | {"versions": ["2"]})
    prediction = classifier.classify(contract.SYSTEM.sample(), Deadline(5))
    assert (prediction.version, prediction.threshold) == ("2", 0.75)


def test_a_threshold_changed_in_the_same_version_is_seen(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = listen(dict(GOOD))
    classifier, now = classifier_of(Triton(listener.url)), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert classifier.classify(contract.SYSTEM.sample(), Deadline(5)).threshold == 0.5
    listener.script["/config"] = http({"parameters": {"threshold": {"string_value": "0.75"}}})
    assert classifier.classify(contract.SYSTEM.sample(), Deadline(5)).threshold == 0.5, "for some seconds"
    monkeypatch.setattr(time, "monotonic", lambda: now + 5)
    assert classifier.classify(contract.SYSTEM.sample(), Deadline(5)).threshold == 0.75


def test_a_model_replaced_between_two_rows_is_an_error(listen: Listen) -> None:
    listener = listen(GOOD | {"/config": http({"max_batch_size": 4})})
    served, ask = classifier_of(Triton(listener.url)).rows(Deadline(5))
    assert (served.info.name, served.info.version, served.info.max_batch_size) == ("m", "1", 4)
    picture = np.zeros((1, 224, 224, 3), np.uint8)
    assert ask(picture).argmax() == 10
    listener.script["/infer"] = answered([1.0] + [0.0] * 10, "2")
    error = failure(lambda: ask(picture))
    assert (error.code, "replaced" in str(error)) == ("inference_failed", True)


def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    error = failure(lambda: classify("no-such-host.invalid:8000"))
    assert error.code in ("triton_unavailable", "triton_too_slow")


def test_an_address_that_swallows_packets_is_given_up_after_the_connect_timeout() -> None:
    # A listener whose queue is full answers no further attempts to connect.
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        host, port = listener.getsockname()
        started = time.monotonic()
        assert failure(lambda: classify(f"{host}:{port}", connect_s=1.0)).code == "triton_unavailable"
    assert time.monotonic() - started > 0.9


def test_a_model_that_is_not_ready_is_reported_with_the_ready_models(listen: Listen) -> None:
    # Of models that were never asked, Triton reports no counts.
    stats = {"model_stats": [{"name": "b", "version": "1"}, {"name": "a", "version": "1"}]}
    locked = http({"error": "This API is restricted"}, "403 Forbidden")
    unknown = http({"error": "unknown model"}, "404 Not Found")
    refused = http({}, "400 Bad Request")
    listener = listen({"/index": locked, "/stats": http(stats), "/ready": refused, "": unknown})
    error = failure(lambda: classify(listener.url))
    assert error.code == "model_not_ready"
    assert re.search(r"'m'.*served are: a, b", str(error))


@pytest.mark.parametrize("sent_id", ["A-1.b_c:9", "f" * 64])
def test_a_good_request_id_is_kept_and_passed_on_to_triton(listen: Listen, sent_id: str) -> None:
    listener = listen(GOOD)
    app = create_app(Settings(triton_url=listener.url, models={"food11": "m"}))
    reply = app.test_client().get("/test", headers={"X-Request-ID": sent_id})
    assert (reply.status_code, reply.headers["X-Request-ID"]) == (200, sent_id)
    assert f'"id":"{sent_id}"' in listener.bodies[-1]


def test_a_stream_that_its_client_leaves_is_counted() -> None:
    outcomes: list[tuple[str, str]] = []

    def stream() -> Iterator[int]:
        with request_to_model(lambda *outcome: outcomes.append(outcome), "m/1"):
            yield 1

    pieces = stream()
    next(pieces)
    pieces.close()
    assert outcomes == [("m", "client_left")]


# The Open Inference Protocol
NAME = SYSTEM.default_model
INFER = f"/v2/models/{NAME}/infer"


@pytest.fixture
def browser(listen: Listen) -> FlaskClient:
    photo = tensor("INPUT_IMAGE", "BYTES", shape=(-1, 1))
    answer = tensor("PROBABILITIES", "FP32", shape=(-1, 11))
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
def test_an_unknown_path_has_an_answer_of_the_protocol(browser: FlaskClient, method: str, path: str) -> None:
    reply = browser.open(path, method=method, headers={"Accept": "text/html"})
    assert (reply.status_code, type(reply.get_json()["error"])) == (405 if path == INFER else 404, str)
