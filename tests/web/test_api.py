"""/predict and /api/v1 through the real app and a real Triton, by each food model."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image
from support.hostile import encoded
from support.web_app import form

from gourmet.systems.food11 import contract

InParallel = Callable[..., list[Any]]
CLASSIFY = "/api/v1/classify"
MODELS = {"food_classifier": "photo", "food_classifier_onnx": "tensor", "food_classifier_int8": "pixels"}


def classify(web: Any, *photos: bytes, query: str = "", **headers: str) -> Any:
    body, content = form(*photos)
    return web.request("POST", CLASSIFY + query, body, **content, **headers)


def test_the_list_has_the_food_models_that_triton_has_ready(python_web: Any) -> None:
    every = python_web.request("GET", "/api/v1/models").json["models"]
    assert {model["system"] for model in every} == {"food11", "digits"}
    listed = python_web.request("GET", "/api/v1/models?system=food11").json
    assert listed["default"] == "food_classifier"
    assert {model["name"]: model["bytes_kind"] for model in listed["models"]} == MODELS
    for model in listed["models"]:
        assert model["system"] == "food11"
        assert model["version"] == "1"
        assert model["labels"] == list(contract.SYSTEM.labels)
        assert 0 < model["threshold"] < 1


@pytest.mark.smoke
@pytest.mark.parametrize("model", MODELS)
def test_predict_and_the_three_ways_of_classify_agree_for_the_same_photo_and_model(
    python_web: Any, sample: bytes, model: str
) -> None:
    query = f"?model={model}"
    body, content = form(sample)
    predicted = python_web.request(
        "POST", "/predict" + query, body, Accept="application/json", **content
    ).json
    text = json.dumps({"images": [base64.b64encode(sample).decode()]})
    replies = [
        classify(python_web, sample, query=query),
        python_web.request("POST", CLASSIFY + query, sample, Content_Type="image/jpeg"),
        python_web.request("POST", CLASSIFY + query, text, Content_Type="application/json"),
    ]
    for reply in replies:
        assert reply.status == 200, reply.body
        (result,) = reply.json["results"]
        assert result["model"] == predicted["model"] == {"name": model, "version": "1"}
        assert (result["label"], result["sure"]) == (predicted["label"], predicted["sure"])
        assert contract.SYSTEM.labels[result["class_id"]] == result["label"]
        assert [entry["label"] for entry in result["top"]] == [entry["label"] for entry in predicted["top"]]
        assert result["probability"] == pytest.approx(predicted["probability"], abs=1e-5)


def test_triton_gets_the_input_that_the_model_takes(python_web: Any, sample: bytes) -> None:
    sent, phases = {}, {}
    for model in MODELS:
        (result,) = classify(python_web, sample, query=f"?model={model}").json["results"]
        sent[model], phases[model] = result["bytes_sent"], list(result["timings_ms"])
    pixels = contract.SYSTEM.input_size**2 * 3
    assert sent == {
        "food_classifier": len(sample) + 4,
        "food_classifier_onnx": pixels * 4,
        "food_classifier_int8": pixels,
    }
    assert phases["food_classifier"] == ["receive", "decode", "triton", "total"]
    assert phases["food_classifier_onnx"] == ["receive", "decode", "preprocess", "triton", "total"]


@pytest.mark.parametrize("model", ["food_classifier", "food_classifier_onnx", "food_classifier_int8"])
def test_a_single_request_reports_its_own_queue_and_model_time(
    python_web: Any, sample: bytes, model: str
) -> None:
    ratios = list[float]()
    for _ in range(5):
        (result,) = classify(python_web, sample, query=f"?inside=1&model={model}").json["results"]
        inside = result["inside"]
        assert inside["requests"] == 1
        assert inside["compute"] > 0.5
        ratios.append((inside["queue"] + inside["compute"]) / result["timings_ms"]["triton"])
    # A backend stops its clock a little after it answered, and a busy machine may pause it before.
    assert min(ratios) < 1.5
    assert "inside" not in classify(python_web, sample).json["results"][0]


def test_concurrent_requests_report_how_many_requests_their_times_cover(
    python_web: Any, sample: bytes
) -> None:
    results = classify(python_web, *[sample] * 8, query="?inside=1&model=food_classifier_onnx").json[
        "results"
    ]
    assert max(result["inside"]["requests"] for result in results) > 1
    assert all(result["inside"]["compute"] > 0 for result in results)


@pytest.mark.parametrize("model", MODELS)
def test_sixteen_photos_with_broken_ones_among_them_in_one_call(
    python_web: Any, sample: bytes, model: str
) -> None:
    alone = classify(python_web, sample, query=f"?model={model}").json["results"][0]
    photos = [sample[: len(sample) // 2] if index % 5 == 2 else sample for index in range(16)]
    reply = classify(python_web, *photos, query=f"?model={model}", X_Request_ID="sixteen")
    assert reply.status == 200
    results = reply.json["results"]
    assert len(results) == 16
    for index, result in enumerate(results):
        assert result["filename"] == f"{index}.jpg"
        if index % 5 == 2:
            assert result["error"]["code"] == "broken_picture"
            assert result["error"]["request_id"] == "sixteen"
        else:
            assert result["probability"] == pytest.approx(alone["probability"], abs=1e-3)


@pytest.mark.parametrize("name", ["no_such_model", "..", "a/b", "food_classifier/versions/1", "x" * 300, "ä"])
def test_an_unavailable_model_is_refused_with_the_ready_models(
    python_web: Any, sample: bytes, name: str
) -> None:
    reply = classify(python_web, sample, query=f"?model={quote(name, safe='')}")
    assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_model")
    assert "food_classifier, food_classifier_int8, food_classifier_onnx" in reply.json["error"]["message"]


KEY = "a-key-of-the-tests"


@pytest.fixture(scope="module")
def guarded_web(start: Any, triton: Any) -> Any:
    """An app with everything set that is off unless set."""
    return start(
        triton.http_url,
        API_KEYS=f"another-key-of-the-tests,{KEY}",
        RATE_LIMIT="20/h",
        WEB_CONCURRENCY="1",
        TRUSTED_HOSTS="food.example",
        CORS_ORIGINS="https://a.example",
    )


def test_a_client_without_a_key_can_read_the_refusal_while_it_still_sends(
    guarded_web: Any, sample: bytes
) -> None:
    assert classify(guarded_web, sample, X_API_Key=KEY).status == 200
    large = sample + b"\0" * 8_000_000
    reply = classify(guarded_web, large)
    assert (reply.status, reply.json["error"]["code"]) == (401, "key_needed")
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert guarded_web.request("GET", "/api/v1/health").json["ready"] is True


def test_all_threads_of_a_worker_share_one_rate_limit(guarded_web: Any, in_parallel: Any) -> None:
    def ask(_: int) -> Any:
        return guarded_web.request("GET", "/api/v1/models", X_API_Key="another-key-of-the-tests")

    replies = in_parallel(ask, list(range(40)), threads=8)
    assert sorted(reply.status for reply in replies) == [200] * 20 + [429] * 20
    refused = next(reply for reply in replies if reply.status == 429)
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["ratelimit-policy"] == '"default";q=20;w=3600'
    # Each photo of a call counts too.
    statuses = [classify(guarded_web, *[b"x"] * 12, X_API_Key=KEY).status for _ in range(2)]
    assert statuses == [200, 429]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF"])
def test_every_format_is_answered_through_both_models(python_web: Any, sample: bytes, kind: str) -> None:
    photo = encoded(Image.open(io.BytesIO(sample)), kind)
    a, b = python_web.predict(photo), python_web.predict(photo, model="food_classifier_int8")
    assert (a.status, b.status) == (200, 200), (a.body, b.body)
    assert a.json["label"] == b.json["label"]
    assert a.json["probability"] == pytest.approx(b.json["probability"], abs=1e-4)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 400, "empty"),
        pytest.param(b"just text", 400, "not_a_picture", marks=pytest.mark.smoke),
        (b"<svg/>", 415, "unsupported_format"),
        (contract.SYSTEM.sample()[:20_000], 400, "broken_picture"),
        (contract.SYSTEM.sample() + b"PK\x05\x06" + b"\0" * 18, 415, "mixed_file"),
    ],
)
def test_a_file_that_is_not_a_photo_is_refused_in_the_same_words_by_the_app_and_by_triton(
    python_web: Any, data: bytes, status: int, code: str
) -> None:
    messages = set()
    for model in MODELS:
        reply = python_web.predict(data, model=model)
        assert (reply.status, reply.json["error"]["code"]) == (status, code)
        messages.add(reply.json["error"]["message"])
    (message,) = messages
    assert "INPUT_IMAGE" not in message


def test_a_photo_sent_in_chunks_without_a_length_is_answered(python_web: Any, sample: bytes) -> None:
    whole = python_web.predict(sample).json
    chunked = python_web.predict(sample, pieces=9)
    assert chunked.status == 200
    assert chunked.json["label"] == whole["label"]


def test_metrics_add_up_over_all_workers(python_web: Any, in_parallel: InParallel) -> None:
    def answered() -> float:
        text = python_web.request("GET", "/metrics").body.decode()
        start = 'web_requests_total{method="GET",route="/test",status="200"}'
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(start))

    before = answered()
    in_parallel(lambda _: python_web.request("GET", "/test"), list(range(20)), threads=8)
    assert answered() == before + 20
