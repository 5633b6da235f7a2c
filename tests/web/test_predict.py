"""Photos through the real app and a real Triton, by both models."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.hostile import encoded
from support.web_app import StartWeb, WebApp

from gourmet.systems.food11 import contract

InParallel = Callable[..., list[Any]]


def drawn(seed: int) -> bytes:
    """A picture unlike those of other seeds."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def test_the_sample_is_answered_in_full(python_web: Any, sample: bytes) -> None:
    reply = python_web.predict(sample, X_Request_ID="a-test.1")
    assert reply.status == 200
    answer = reply.json
    assert list(answer) == [
        *("label", "probability", "sure", "relevant", "doubtful", "top"),
        *("model", "timings_ms", "request_id", "food"),
    ]
    assert answer["label"] in contract.SYSTEM.labels
    assert answer["model"]["name"] == "food_classifier"
    assert answer["model"]["version"] == "1"
    assert answer["request_id"] == reply.headers["x-request-id"] == "a-test.1"
    shares = [entry["probability"] for entry in answer["top"]]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == answer["probability"]
    timings = answer["timings_ms"]
    assert set(timings) == {"receive", "decode", "triton", "total"}
    assert timings["total"] >= timings["decode"] + timings["triton"] > 0


def same(a: Any, b: Any) -> None:
    assert a["label"] == b["label"]
    theirs = {entry["label"]: entry["probability"] for entry in b["top"]}
    for entry in a["top"]:
        if entry["label"] in theirs:
            assert abs(entry["probability"] - theirs[entry["label"]]) < 1e-4


@pytest.fixture(scope="module")
def int8_web(start: StartWeb, triton: Any) -> WebApp:
    """The app that sends pixels to the file which `food_classifier` has too."""
    return start(triton.http_url, FOOD11_MODEL_NAME="food_classifier_int8")


def test_both_models_answer_real_photos_alike(python_web: Any, int8_web: Any, food_photos: Path) -> None:
    with zipfile.ZipFile(food_photos / "sharp.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))[::10]
        photos = [archive.read(name) for name in names]
    assert photos
    for photo in photos:
        same(python_web.predict(photo).json, int8_web.predict(photo).json)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF"])
def test_every_format_is_answered_through_both_models(
    python_web: Any, int8_web: Any, sample: bytes, kind: str
) -> None:
    photo = encoded(Image.open(io.BytesIO(sample)), kind)
    a, b = python_web.predict(photo), int8_web.predict(photo)
    assert (a.status, b.status) == (200, 200), (a.body, b.body)
    same(a.json, b.json)


@pytest.mark.parametrize("web", ["python_web", "onnx_web"])
def test_many_photos_at_once_each_get_their_own_answer(
    web: str, request: pytest.FixtureRequest, in_parallel: InParallel
) -> None:
    app = request.getfixturevalue(web)
    photos = [drawn(seed) for seed in range(24)]
    alone = [app.predict(photo).json for photo in photos]
    order = [index for _ in range(4) for index in range(len(photos))]

    def ask(index: int) -> tuple[int, Any]:
        return index, app.predict(photos[index], X_Request_ID=f"photo-{index}").json

    for index, answer in in_parallel(ask, order):
        assert answer["request_id"] == f"photo-{index}"
        assert answer["label"] == alone[index]["label"]
        assert answer["probability"] == pytest.approx(alone[index]["probability"], abs=1e-3)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 400, "empty"),
        pytest.param(b"just text", 400, "not_a_picture", marks=pytest.mark.smoke),
        (b"<svg/>", 415, "unsupported_format"),
        (b"<!doctype html>", 415, "unsupported_format"),
        (contract.SYSTEM.sample()[:20_000], 400, "broken_picture"),
        (contract.SYSTEM.sample()[:300], 400, "broken_picture"),
        (contract.SYSTEM.sample() + b"PK\x05\x06" + b"\0" * 18, 415, "mixed_file"),
    ],
)
def test_a_file_that_is_not_a_photo_is_refused_alike_by_both_models(
    python_web: Any, onnx_web: Any, data: bytes, status: int, code: str
) -> None:
    for reply in (python_web.predict(data), onnx_web.predict(data)):
        assert (reply.status, reply.json["error"]["code"]) == (status, code)


def test_curl_gets_json_javascript_a_fragment_and_a_browser_a_page(python_web: Any, sample: bytes) -> None:
    assert python_web.predict(sample, accept="*/*").json["label"] in contract.SYSTEM.labels
    fragment = python_web.predict(sample, accept="*/*", X_Requested_With="fetch")
    assert fragment.headers["content-type"].startswith("text/html")
    assert b"<html" not in fragment.body
    assert any(label.replace("&", "&amp;").encode() in fragment.body for label in contract.SYSTEM.labels)
    page = python_web.predict(sample, accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert b"<html" in page.body


def test_a_photo_sent_in_chunks_without_a_length_is_answered(python_web: Any, sample: bytes) -> None:
    whole = python_web.predict(sample).json
    chunked = python_web.predict(sample, pieces=9)
    assert chunked.status == 200
    assert chunked.json["label"] == whole["label"]


def test_the_test_route_and_readyz_call_the_real_model(python_web: Any, onnx_web: Any) -> None:
    for web, model in ((python_web, "food_classifier"), (onnx_web, "food_classifier_onnx")):
        assert web.request("GET", "/test", Accept="application/json").json["model"]["name"] == model
        ready = web.request("GET", "/readyz")
        assert (ready.status, ready.json["model"]["name"]) == (200, model)


def test_metrics_add_up_over_all_workers(python_web: Any, in_parallel: InParallel) -> None:
    def answered() -> float:
        text = python_web.request("GET", "/metrics").body.decode()
        start = 'web_requests_total{method="GET",route="/test",status="200"}'
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(start))

    before = answered()
    in_parallel(lambda _: python_web.request("GET", "/test"), list(range(20)), threads=8)
    assert answered() == before + 20
