"""/api/v1 with a fake classifier behind it: every way in, every answer, every refusal."""

from __future__ import annotations

import base64
import io
import re
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.eventually import eventually
from support.fake_classifier import EGG, PHOTO, FakeClassifier, client, code

from app.models import Prediction
from app.photos import PHOTO_THREADS
from app.web import errors
from gourmet.contracts import ModelInfo
from gourmet.triton_client.deadline import Deadline

CLASSIFY = "/api/v1/classify"


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


def as_form(browser: FlaskClient) -> Any:
    return send(browser, PHOTO)


def as_bytes(browser: FlaskClient) -> Any:
    return browser.post(CLASSIFY, data=PHOTO, content_type="image/jpeg")


def as_octets(browser: FlaskClient) -> Any:
    return browser.post(CLASSIFY, data=PHOTO, content_type="application/octet-stream")


def as_json(browser: FlaskClient) -> Any:
    return browser.post(CLASSIFY, json={"images": [base64.b64encode(PHOTO).decode()]})


def as_data_url(browser: FlaskClient) -> Any:
    return browser.post(
        CLASSIFY, json={"images": ["data:image/jpeg;base64," + base64.b64encode(PHOTO).decode()]}
    )


@pytest.mark.parametrize("way", [as_form, as_bytes, as_octets, as_json, as_data_url])
def test_a_photo_is_answered_alike_whichever_way_it_comes(way: Any) -> None:
    fake = FakeClassifier()
    reply = way(client(fake))
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
    texts = ["!!!", base64.b64encode(PHOTO).decode(), ""]
    results = client().post(CLASSIFY, json={"images": texts}).get_json()["results"]
    assert "base64" in results[0]["error"]["message"]
    assert results[1]["label"] == "Egg"
    assert results[2]["error"]["code"] == "empty"


def test_a_call_with_bad_photos_and_failed_photos_answers_200() -> None:
    reply = send(client(errors.ServingError("triton_unavailable", "x")), PHOTO, b"text")
    assert reply.status_code == 200
    assert [result["error"]["code"] for result in reply.get_json()["results"]] == [
        *("triton_unavailable", "not_a_picture")
    ]


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        ({"data": {"other": "x"}, "content_type": "multipart/form-data"}, 400, "no_file"),
        ({"data": {"file": (io.BytesIO(b""), "")}}, 400, "no_file"),
        ({"data": b"", "content_type": "image/png"}, 400, "no_file"),
        ({"json": {"imags": []}}, 400, "bad_request"),
        ({"json": {"images": []}}, 400, "bad_request"),
        ({"json": {"images": [1]}}, 400, "bad_request"),
        ({"json": ["x"]}, 400, "bad_request"),
        ({"data": b"{", "content_type": "application/json"}, 400, "bad_request"),
        ({"data": b"\xff", "content_type": "application/json"}, 400, "bad_request"),
        ({"data": {"file": "x"}}, 415, "unsupported_media_type"),
        ({"data": b"x", "content_type": "text/plain"}, 415, "unsupported_media_type"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value))[:60],
)
def test_an_invalid_call_is_refused_as_a_whole(options: Any, status: int, error: str) -> None:
    reply = client().post(CLASSIFY, **options)
    assert code(reply) == (status, error)


@pytest.mark.parametrize("value", [b'"a"', b"1", b"{}"])
def test_a_million_values_are_refused_before_any_is_made(value: bytes) -> None:
    body = b'{"images": [' + value + (b"," + value) * 1_000_000 + b"]}"
    tracemalloc.start()
    reply = client().post(CLASSIFY, data=body, content_type="application/json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code(reply) == (413, "too_many_photos")
    assert "at most 16 photos" in reply.get_json()["error"]["message"]
    assert peak < len(body) + 8_000_000


def test_as_many_photos_as_allowed_are_taken_as_data_urls() -> None:
    texts = ["data:image/jpeg;base64," + base64.b64encode(PHOTO).decode()] * 16
    assert len(client().post(CLASSIFY, json={"images": texts}).get_json()["results"]) == 16
    assert code(client().post(CLASSIFY, json={"images": [*texts, ""]})) == (413, "too_many_photos")


def test_a_call_with_an_address_is_told_that_addresses_are_not_fetched() -> None:
    reply = client().post(CLASSIFY, json={"url": "https://food.example/soup.jpg"})
    assert code(reply) == (400, "bad_request")
    assert "addresses are not fetched" in reply.get_json()["error"]["message"]


def test_an_error_does_not_repeat_a_long_input() -> None:
    reply = client().post(CLASSIFY, json={"images": [""], "x" * 100_000: 1})
    assert code(reply) == (400, "bad_request")
    assert len(reply.data) < 500


def test_a_call_larger_than_allowed_is_refused_and_a_photo_larger_than_allowed_fails_alone() -> None:
    big = PHOTO + b"\0" * 90_000  # the test client makes files of bodies above 500 kB
    assert code(send(client(max_call_mb=0.25), *[big] * 3)) == (413, "upload_too_large")
    results = send(client(max_upload_mb=0.1), PHOTO, big).get_json()["results"]
    assert "label" in results[0]
    assert results[1]["error"]["code"] == "upload_too_large"


def asked_by_query(browser: FlaskClient, name: str) -> Any:
    return send(browser, PHOTO, query=f"?model={name}")


def asked_by_field(browser: FlaskClient, name: str) -> Any:
    return send(browser, PHOTO, model=name)


def asked_by_json(browser: FlaskClient, name: str) -> Any:
    return browser.post(CLASSIFY, json={"images": [base64.b64encode(PHOTO).decode()], "model": name})


@pytest.mark.promise("README: A single request names one by `?model=NAME`")
@pytest.mark.parametrize("way", [asked_by_query, asked_by_field, asked_by_json])
def test_a_model_may_be_chosen_from_those_that_are_ready(way: Any) -> None:
    (result,) = way(client(), "food_classifier_int8").get_json()["results"]
    assert result["model"]["name"] == "food_classifier_int8"
    reply = way(client(), "nobody")
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
    assert results[-1]["timings_ms"]["wait"] > results[0]["timings_ms"]["wait"]
    assert results[-1]["timings_ms"]["total"] > results[0]["timings_ms"]["total"]


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
    """Found: all calls shared four threads, first come, first served."""
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
    browser = client(SlowClassifier(0.2), request_deadline_s=0.3)
    started = time.monotonic()
    results = send(browser, *[b"x"] * 16).get_json()["results"]
    assert time.monotonic() - started < 30
    assert "label" in results[0]
    assert results[-1]["error"]["code"] == "triton_too_slow"


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
    assert (
        client(errors.ServingError("triton_unavailable", "x")).get("/api/v1/health").get_json()["state"]
        == "away"
    )


def test_readiness_probes_answer_from_the_cache_while_one_probe_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        ("POST", "/api/v1/classify?top=3", "inside, "),
        ("GET", "/api/v1/health?systme=food11", "system"),
        ("POST", "/predict?x=1&model=food_classifier", "model"),
    ],
)
def test_an_undocumented_parameter_is_refused_and_the_allowed_ones_are_named(
    method: str, path: str, allowed: str
) -> None:
    reply = client().open(path, method=method, headers={"Accept": "application/json"})
    assert code(reply) == (400, "bad_request")
    name = path.partition("?")[2].partition("=")[0]
    assert f"{name!r} is not a parameter of {path.partition('?')[0]}" in reply.get_json()["error"]["message"]
    assert allowed.strip(", ") in reply.get_json()["error"]["message"].partition("allowed: ")[2]
