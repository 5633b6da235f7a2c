"""/api/v1 with a fake classifier behind it: every way in, every answer and refusal, and its document."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient
from openapi_spec_validator import validate
from support.eventually import eventually
from support.fake_classifier import EGG, PHOTO, FakeClassifier, client, code
from support.fake_classifier import form as fields

from app.api.schemas import Error, Health, Models, Predicted, Results, Schema
from app.models import Prediction
from app.photos import PHOTO_THREADS
from app.web import errors
from gourmet.contracts import ModelInfo
from gourmet.triton_client.deadline import Deadline

CLASSIFY = "/api/v1/classify"
ENCODED = base64.b64encode(PHOTO).decode()


def send(browser: FlaskClient, *photos: bytes, query: str = "", **fields: str) -> Any:
    # Written here, since werkzeug's client leaves out the end of the line that an empty file is.
    parts = [
        f'name="file"; filename="{index}.jpg"\r\n\r\n'.encode() + photo for index, photo in enumerate(photos)
    ]
    parts += [f'name="{name}"\r\n\r\n{text}'.encode() for name, text in fields.items()]
    body = b"".join(b"--edge\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts)
    return browser.post(
        CLASSIFY + query, data=body + b"--edge--\r\n", content_type="multipart/form-data; boundary=edge"
    )


WAYS: dict[str, Callable[[FlaskClient], Any]] = {
    "form": lambda browser: send(browser, PHOTO),
    "image": lambda browser: browser.post(CLASSIFY, data=PHOTO, content_type="image/jpeg"),
    "bytes": lambda browser: browser.post(CLASSIFY, data=PHOTO, content_type="application/octet-stream"),
    "base64": lambda browser: browser.post(CLASSIFY, json={"images": [ENCODED]}),
    "data URL": lambda browser: browser.post(
        CLASSIFY, json={"images": [f"data:image/jpeg;base64,{ENCODED}"]}
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_photo_is_answered_alike_whichever_way_it_comes(way: str) -> None:
    fake = FakeClassifier()
    reply = WAYS[way](client(fake))
    assert reply.status_code == 200
    assert fake.asked == [PHOTO]
    (result,) = reply.get_json()["results"]
    assert result.pop("filename", "0.jpg") == "0.jpg"
    timings = result.pop("timings_ms")
    assert list(timings) == ["receive", "decode", "preprocess", "triton", "total"]
    assert timings["triton"] == 20.25
    assert result == {
        "verdict": EGG.verdict._asdict(),
        "label": "Egg",
        "class_id": 3,
        "probability": 0.8,
        "sure": True,
        "threshold": 0.4,
        "top": [{"label": label, "probability": probability} for label, probability in EGG.top],
        "model": {"name": "food_classifier", "version": "3"},
        "bytes_sent": 600_000,
        "request_id": reply.headers["X-Request-ID"],
    }
    assert "triton;dur=20.2" in reply.headers["Server-Timing"]


def test_several_photos_are_answered_in_order_and_a_bad_one_fails_alone() -> None:
    reply = send(client(), PHOTO, b"text", PHOTO, b"", b"<svg/>")
    assert reply.status_code == 200
    results = reply.get_json()["results"]
    assert [result["filename"] for result in results] == [f"{index}.jpg" for index in range(5)]
    codes = [result.get("error", {}).get("code") for result in results]
    assert codes == [None, "not_a_picture", None, "empty", "unsupported_format"]
    assert results[1]["error"]["request_id"] == reply.headers["X-Request-ID"]
    assert results[0]["timings_ms"]["wait"] >= 0


def test_invalid_base64_fails_alone() -> None:
    results = client().post(CLASSIFY, json={"images": ["!!!", ENCODED, ""]}).get_json()["results"]
    assert "base64" in results[0]["error"]["message"]
    assert results[1]["label"] == "Egg"
    assert results[2]["error"]["code"] == "empty"


def test_a_call_with_bad_photos_and_failed_photos_answers_200() -> None:
    reply = send(client(errors.ServingError("triton_unavailable", "x")), PHOTO, b"text")
    assert reply.status_code == 200
    codes = [result["error"]["code"] for result in reply.get_json()["results"]]
    assert codes == ["triton_unavailable", "not_a_picture"]


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        ({"data": {"other": "x"}, "content_type": "multipart/form-data"}, 400, "no_file"),
        ({"data": {"file": (io.BytesIO(b""), "")}}, 400, "no_file"),
        ({"data": b"", "content_type": "image/png"}, 400, "no_file"),
        ({"json": {"images": []}}, 400, "bad_request"),
        ({"json": ["x"]}, 400, "bad_request"),
        ({"data": b"\xff", "content_type": "application/json"}, 400, "bad_request"),
        ({"data": {"file": "x"}}, 415, "unsupported_media_type"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value))[:60],
)
def test_an_invalid_call_is_refused_as_a_whole(options: Any, status: int, error: str) -> None:
    reply = client().post(CLASSIFY, **options)
    assert code(reply) == (status, error)


def test_a_million_values_are_refused_before_any_is_made() -> None:
    body = b'{"images": ["a"' + b',"a"' * 1_000_000 + b"]}"
    tracemalloc.start()
    reply = client().post(CLASSIFY, data=body, content_type="application/json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code(reply) == (413, "too_many_photos")
    assert "at most 16 photos" in reply.get_json()["error"]["message"]
    assert peak < len(body) + 8_000_000


def test_as_many_photos_as_allowed_are_taken_as_data_urls() -> None:
    texts = [f"data:image/jpeg;base64,{ENCODED}"] * 16
    assert len(client().post(CLASSIFY, json={"images": texts}).get_json()["results"]) == 16
    assert code(client().post(CLASSIFY, json={"images": [*texts, ""]})) == (413, "too_many_photos")


def test_a_call_with_an_address_is_told_that_addresses_are_not_fetched() -> None:
    reply = client().post(CLASSIFY, json={"url": "https://food.example/soup.jpg"})
    assert code(reply) == (400, "bad_request")
    assert "addresses are not fetched" in reply.get_json()["error"]["message"]


def test_a_call_larger_than_allowed_is_refused_and_a_photo_larger_than_allowed_fails_alone() -> None:
    big = PHOTO + b"\0" * 90_000  # the test client makes files of bodies above 500 kB
    assert code(send(client(max_call_mb=0.25), *[big] * 3)) == (413, "upload_too_large")
    results = send(client(max_upload_mb=0.1), PHOTO, big).get_json()["results"]
    assert "label" in results[0]
    assert results[1]["error"]["code"] == "upload_too_large"


MODEL_WAYS: dict[str, Callable[[FlaskClient, str], Any]] = {
    "query": lambda browser, name: send(browser, PHOTO, query=f"?model={name}"),
    "field": lambda browser, name: send(browser, PHOTO, model=name),
    "JSON": lambda browser, name: browser.post(CLASSIFY, json={"images": [ENCODED], "model": name}),
}


@pytest.mark.promise("README: A single request names one by `?model=NAME`")
@pytest.mark.parametrize("way", MODEL_WAYS)
def test_a_model_may_be_chosen_from_those_that_are_ready(way: str) -> None:
    ask = MODEL_WAYS[way]
    (result,) = ask(client(), "food_classifier_int8").get_json()["results"]
    assert result["model"]["name"] == "food_classifier_int8"
    reply = ask(client(), "nobody")
    assert code(reply) == (404, "unknown_model")
    assert "food_classifier, food_classifier_int8" in reply.get_json()["error"]["message"]


class SlowClassifier(FakeClassifier):
    """Knows how many photos it was asked about at the same time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.now = self.most = 0
        self._lock = threading.Lock()

    def classify(self, photo: bytes, deadline: Deadline, model: str = "", **_: Any) -> Prediction:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self._lock:
            self.now -= 1
        probabilities = [0.0] * 11
        probabilities[len(photo)] = 1.0
        return replace(EGG, probabilities=tuple(probabilities))


def test_photos_of_a_call_run_concurrently_up_to_a_limit() -> None:
    slow = SlowClassifier(0.05)
    photos = [b"x" * (index % 11) for index in range(16)]
    results = send(client(slow), *photos).get_json()["results"]
    assert [result["class_id"] for result in results] == [index % 11 for index in range(16)]
    assert 1 < slow.most <= PHOTO_THREADS
    last = results[-1]["timings_ms"]
    assert last["wait"] >= 50 * (15 // PHOTO_THREADS)
    assert last["total"] >= last["wait"] + 50


class HeldPhotos(FakeClassifier):
    """Answers all photos at once, except one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.held = threading.Event(), 0

    def classify(self, photo: bytes, deadline: Deadline, model: str = "", **_: Any) -> Prediction:
        if photo == b"held":
            self.held += 1
            self.go_on.wait(60)
        return EGG


def test_a_call_with_many_photos_does_not_delay_the_call_of_another() -> None:
    classifier = HeldPhotos()
    app = client(classifier, request_deadline_s=5).application
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(send, app.test_client(), *[b"held"] * 16)
        eventually(lambda: classifier.held == PHOTO_THREADS)
        results = send(app.test_client(), b"1", b"2").get_json()["results"]
        classifier.go_on.set()
        assert long.result().status_code == 200
    assert ["label" in result for result in results] == [True, True]


def test_photos_that_are_not_reached_before_the_deadline_are_too_slow_and_the_others_answered() -> None:
    classifier = HeldPhotos()
    photos = [b"1", *[b"held"] * 15]
    results = send(client(classifier, request_deadline_s=3), *photos).get_json()["results"]
    classifier.go_on.set()
    assert "label" in results[0]
    assert results[-1]["error"]["code"] == "triton_too_slow"
    assert classifier.held == PHOTO_THREADS, "no further photo was asked about"


def test_an_error_does_not_repeat_a_long_input() -> None:
    reply = client().post(CLASSIFY, json={"images": [""], "x" * 100_000: 1})
    assert code(reply) == (400, "bad_request")
    assert len(reply.data) < 500


@pytest.mark.parametrize("path", ["/api/v1/nothing", CLASSIFY])
def test_the_api_speaks_json_to_browsers_too(path: str) -> None:
    reply = client().get(path, headers={"Accept": "text/html"})
    assert reply.status_code in (404, 405)
    assert reply.get_json()["error"]["code"] in ("not_found", "method_not_allowed")


@pytest.mark.parametrize(
    ("outcome", "state", "error"),
    [
        (EGG, "ready", None),
        (errors.ModelNotReady("m", ["a"], loading=True), "loading", "model_not_ready"),
        (errors.ModelNotReady("m", ["a"]), "not_ready", "model_not_ready"),
        (errors.ServingError("triton_unavailable", "x"), "starting", "triton_unavailable"),
        (errors.ServingError("triton_too_slow", "x"), "away", "triton_too_slow"),
        (errors.ServingError("triton_busy", "x"), "away", "triton_busy"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_health_reports_the_whole_state_in_one_response(outcome: Any, state: str, error: str | None) -> None:
    reply = client(outcome).get("/api/v1/health")
    assert reply.status_code == 200
    health = reply.get_json()
    assert health["alive"] is True
    assert health["ready"] is (state == "ready")
    assert (health["state"], health.get("code")) == (state, error)
    assert health["model"]["name"] == "food_classifier"
    assert health["message"]


def test_a_triton_that_was_ready_before_is_away_and_not_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services._READY_AGE_S", 0.0)
    fake = FakeClassifier()
    browser = client(fake)
    assert browser.get("/api/v1/health").get_json()["state"] == "ready"
    fake.outcome = errors.ServingError("triton_unavailable", "x")
    assert browser.get("/api/v1/health").get_json()["state"] == "away"


def test_a_triton_that_is_not_seen_for_long_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services._STARTING_S", 0.0)
    health = client(errors.ServingError("triton_unavailable", "x")).get("/api/v1/health").get_json()
    assert health["state"] == "away"


def test_probes_answer_from_the_cache_while_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services._READY_AGE_S", 0.0)
    probed, go_on = threading.Event(), threading.Event()

    class Stuck(FakeClassifier):
        def loaded(self, system: str, deadline: Deadline) -> ModelInfo:
            if self.asked and system == "food11":  # others are asked for the same probe
                probed.set()
                go_on.wait(10)
            return super().loaded(system, deadline)

    app = client(Stuck()).application
    assert app.test_client().get("/readyz").status_code == 200
    waiting = threading.Thread(target=lambda: app.test_client().get("/readyz"))
    waiting.start()
    assert probed.wait(10)
    assert app.test_client().get("/readyz").status_code == 200
    go_on.set()
    waiting.join(10)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/v1/classify?top=3", "inside"),
        ("GET", "/api/v1/health?systme=food11", "system"),
        ("POST", "/predict?x=1&model=food_classifier", "model"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_allowed_ones(method: str, path: str, allowed: str) -> None:
    reply = client().open(path, method=method, headers={"Accept": "application/json"})
    assert code(reply) == (400, "bad_request")
    address, _, query = path.partition("?")
    refusal, _, names = reply.get_json()["error"]["message"].partition("allowed: ")
    assert f"{query.partition('=')[0]!r} is not a parameter of {address}" in refusal
    assert allowed in names


# The document
TESTS = Path(__file__).parents[1]


def document(**settings: Any) -> Any:
    return client(**settings).get("/api/v1/openapi.json").get_json()


def resolved(document: Any, value: Any) -> Any:
    """Return what `value` refers to."""
    while "$ref" in value:
        path = value["$ref"].split("/")[1:]
        value = document
        for name in path:
            value = value[name]
    return value


def test_the_document_is_valid() -> None:
    made = document()
    validate(made)
    assert made["openapi"].startswith("3.1")
    answer = made["paths"][CLASSIFY]["post"]["responses"]["200"]["content"]["application/json"]
    Results.model_validate(answer["example"])


def test_every_route_of_the_api_has_an_entry_and_every_entry_a_route(tmp_path: Path) -> None:
    browser = client(keep_corrections=tmp_path)
    entries = browser.get("/api/v1/openapi.json").get_json()["paths"]
    methods = {
        rule.rule: {method.lower() for method in rule.methods or ()} - {"head", "options"}
        for rule in browser.application.url_map.iter_rules()
        if rule.rule in entries or (rule.rule.startswith("/api/v1/") and "openapi" not in rule.rule)
    }
    assert methods == {path: set(operations) for path, operations in entries.items()}


def test_the_document_has_the_same_bytes_in_every_process() -> None:
    program = "from support.fake_classifier import client; print(client().get('/api/v1/openapi.json').text)"

    def made_with(seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)}
        return subprocess.check_output([sys.executable, "-c", program], env=env, text=True)

    assert made_with("2") == made_with("1")


def test_an_answer_needs_its_fields_but_not_those_that_may_be_missing() -> None:
    schema = document()["components"]["schemas"]["Predicted"]
    assert {"label", "sure", "top"} <= set(schema["required"])
    assert {"dish", "relevant"}.isdisjoint(schema["required"])
    assert schema["properties"]["relevant"]["type"] == "boolean"  # never null
    assert schema["properties"]["sure"]["description"].startswith("True if")


def form(*photos: bytes) -> dict[str, Any]:
    return {"data": fields(*photos)}


JSON = {"headers": {"Accept": "application/json"}}
AWAY = errors.ServingError("triton_unavailable", "away")
# outcome, method, address, options, status, the shape of the answer
CALLS: list[tuple[Any, str, str, dict[str, Any], int, type[Schema]]] = [
    (EGG, "get", "/api/v1/models", {}, 200, Models),
    (AWAY, "get", "/api/v1/models", {}, 503, Error),
    (AWAY, "get", "/api/v1/health", {}, 200, Health),
    (EGG, "post", CLASSIFY, form(PHOTO), 200, Results),
    (EGG, "post", CLASSIFY, form(PHOTO, b"text", b"<svg/>"), 200, Results),
    (EGG, "post", CLASSIFY, {"json": {}}, 400, Error),
    (EGG, "post", CLASSIFY, form(b"text"), 400, Results),
    (EGG, "post", CLASSIFY, form(b"<svg/>"), 415, Results),
    (EGG, "post", CLASSIFY + "?model=nobody", form(PHOTO), 404, Error),
    (AWAY, "post", CLASSIFY, form(PHOTO, PHOTO), 503, Results),
    (errors.ServingError("triton_too_slow", "x"), "post", CLASSIFY, form(PHOTO), 504, Results),
    (RuntimeError("a secret"), "post", CLASSIFY, form(PHOTO), 500, Results),
    (EGG, "post", "/predict", form(PHOTO) | JSON, 200, Predicted),
    (EGG, "post", "/predict", form(b"text") | JSON, 400, Error),
    (AWAY, "post", "/predict", form(PHOTO) | JSON, 503, Error),
]


@pytest.mark.parametrize(
    ("outcome", "method", "address", "options", "status", "shape"), CALLS, ids=lambda value: str(value)[:25]
)
def test_answers_are_as_the_document_says(
    outcome: Any, method: str, address: str, options: dict[str, Any], status: int, shape: type[Schema]
) -> None:
    browser = client(outcome)
    made = browser.get("/api/v1/openapi.json").get_json()
    reply = browser.open(address, method=method, **_fresh(options))
    assert reply.status_code == status
    assert ("Retry-After" in reply.headers) == (status == 503)
    assert "secret" not in reply.text
    responses = made["paths"][address.partition("?")[0]][method]["responses"]
    schema = resolved(made, responses[str(status)])["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**schema, "components": made["components"]}).validate(reply.get_json())
    shape.model_validate(reply.get_json())  # and nothing beyond what is documented


def _fresh(options: dict[str, Any]) -> dict[str, Any]:
    """The same options with files that were not read yet."""
    if not isinstance(options.get("data"), dict):
        return options
    files = [(io.BytesIO(file.getvalue()), name) for file, name in options["data"]["file"]]
    return {**options, "data": {"file": files}}


def test_every_code_of_an_error_is_documented_under_its_status(tmp_path: Path) -> None:
    responses = document(keep_corrections=tmp_path)["components"]["responses"]
    # Nobody reads the first; health reports the second with status 200.
    for error, status in set(errors.STATUSES.items()) - {("client_left", 499), ("sample_unusable", 500)}:
        assert f"`{error}`" in responses[str(status)]["description"], (error, status)


def test_the_examples_of_json_routes_match_their_schema() -> None:
    made = document()
    for name in ("translate", "generate"):
        body = made["paths"][f"/api/v1/{name}"]["post"]["requestBody"]["content"]["application/json"]
        jsonschema.validate(body["example"], {**body["schema"], "components": made["components"]})


def test_its_examples_have_the_reader_s_own_address() -> None:
    browser = client(trusted_proxies=1, trusted_hosts=("food.example",))
    https = {"X-Forwarded-Proto": "https"}
    text = browser.get("/api/docs", base_url="http://food.example", headers=https).text
    assert "https://food.example/api/v1/classify" in text
    assert "localhost" not in text
