"""Every route, status, header, body and text of the app, with a fake classifier behind it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from flask.testing import FlaskClient
from support.fake_classifier import EGG, FakeClassifier, client, form
from werkzeug.test import TestResponse

from app.models import Prediction
from app.web.errors import ServingError
from gourmet.contracts import BadAnswer
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.systems.food11 import contract
from gourmet.systems.registry import load_all
from gourmet.triton_client.errors import (
    ModelBusy,
    ModelUnavailable,
    NoAnswerInTime,
    NobodyWaits,
    TritonUnreachable,
)

PAGE = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
JSON = {"Accept": "application/json"}
SCRIPT = {"X-Requested-With": "fetch"}


def post(browser: FlaskClient, data: bytes | None = None, **headers: str) -> TestResponse:
    return browser.post("/predict", data=form() if data is None else form(data), headers=headers)


def test_the_page_has_no_inline_scripts_or_styles_which_its_policy_forbids() -> None:
    browser = client()
    for reply in (browser.get("/", headers=PAGE), post(browser, **PAGE), browser.get("/none", headers=PAGE)):
        # A block of JSON is data, which no policy keeps from being there.
        text = reply.text.replace('<script type="application/json"', "<data")
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)
        for address in re.findall(r'(?:src|href)="([^"#]+)', reply.text):
            with browser.get(address) as linked:
                assert linked.status_code == 200, address


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "json"),
        ({"Accept": "*/*"}, "json"),
        (SCRIPT, "fragment"),
        (SCRIPT | PAGE, "fragment"),
        (PAGE, "page"),
        (JSON, "json"),
        ({"Accept": "application/json, text/plain, */*"}, "json"),
        ({"Accept": "text/html;q=0.5, application/json;q=0.9"}, "json"),
    ],
)
@pytest.mark.parametrize("outcome", [EGG, ServingError("triton_unavailable", "away")])
def test_the_answer_has_the_form_that_the_client_prefers(
    headers: dict[str, str], kind: str, outcome: Prediction | Exception
) -> None:
    reply = post(client(outcome), **headers)
    assert (reply.mimetype == "application/json") == (kind == "json")
    assert ("<html" in reply.text) == (kind == "page")
    assert "Accept" in reply.headers["Vary"]


def test_an_uncalibrated_model_is_never_sure() -> None:
    browser = client(replace(EGG, threshold=0.0))
    answer = browser.post("/predict", data=form(), headers={"Accept": "application/json"}).get_json()
    assert (answer["sure"], answer["calibrated"]) == (False, False)
    assert "Not calibrated" in browser.post("/predict", data=form(), headers={"Accept": "text/html"}).text
    answer = client().post("/predict", data=form(), headers={"Accept": "application/json"}).get_json()
    assert "calibrated" not in answer


def test_below_the_threshold_the_app_says_that_it_is_not_sure() -> None:
    doubtful = replace(EGG, threshold=0.9)
    assert "not sure" in post(client(doubtful), **SCRIPT).text
    assert post(client(doubtful), **JSON).get_json()["sure"] is False


def test_photos_that_a_browser_cannot_show_and_samples_are_shown() -> None:
    browser = client()
    shown = browser.post("/thumbnail", data=form(contract.SYSTEM.sample()))
    assert (shown.status_code, shown.mimetype) == (200, "image/jpeg")
    assert browser.post("/thumbnail", data=form(b"no photo"), headers=JSON).status_code == 400
    assert browser.get("/caption/sample.jpg").mimetype == "image/jpeg"


# The errors of the client, the systems and the decoders, which nobody translates on the way.
FAULTS = [
    (BadAnswer("x"), 502, "inference_failed", None),
    (TritonUnreachable.at("127.0.0.1:9", "refused"), 503, "triton_unavailable", "2"),
    (ModelUnavailable("m", ["a", "b"], "", "not found", 404), 503, "model_not_ready", "2"),
    (ModelBusy("x", 503), 503, "triton_busy", "2"),
    (NoAnswerInTime(3), 504, "triton_too_slow", None),
    (NobodyWaits("the client disconnected"), 499, "client_left", None),
    (DecodersBusy(), 503, "overloaded", "2"),
    (PictureError("animated", "x"), 415, "animated", None),
    (PictureError("too_many_pixels", "x"), 413, "too_many_pixels", None),
    (PictureError("too_slow", "x"), 504, "too_slow", None),
    (ServingError("corrections_full", "x"), 507, "corrections_full", None),
    (RuntimeError("a secret"), 500, "internal", None),
]


@pytest.mark.parametrize(("fault", "status", "code", "retry"), FAULTS, ids=lambda value: str(value)[:20])
def test_every_fault_has_its_status_code_and_words_in_both_forms(
    fault: Exception, status: int, code: str, retry: str | None
) -> None:
    browser = client(fault)
    reply = post(browser, **JSON)
    assert reply.status_code == status
    assert reply.headers.get("Retry-After") == retry
    error = reply.get_json()["error"]
    assert set(error) == {"code", "message", "request_id"}
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == reply.headers["X-Request-ID"]
    page = post(browser, **SCRIPT)
    assert page.status_code == status
    assert f'data-code="{code}"' in page.text
    assert page.headers.get("Retry-After") == retry
    assert "secret" not in reply.text + page.text


def test_an_error_message_is_escaped_on_the_page() -> None:
    reply = post(client(ServingError("inference_failed", "<script>alert(1)</script>")), **SCRIPT)
    assert "<script>" not in reply.text
    assert "&lt;script&gt;" in reply.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/no-such-page", 404, "not_found"),
        ("GET", "/predict", 405, "method_not_allowed"),
        ("DELETE", "/", 405, "method_not_allowed"),
        ("GET", "/static/../app.py", 404, "not_found"),
    ],
)
def test_flask_s_own_errors_look_like_ours(method: str, path: str, status: int, code: str) -> None:
    reply = client().open(path, method=method, headers=JSON)
    assert reply.status_code == status
    assert reply.get_json()["error"]["code"] == code
    page = client().open(path, method=method, headers=PAGE)
    assert page.status_code == status
    assert "<html" in page.text
    if status == 405:
        assert "Allow" in reply.headers


@pytest.mark.parametrize("given", ["", "a b", "f" * 65, "<x>", "ä"])
def test_a_bad_request_id_is_replaced(given: str) -> None:
    reply = client().get("/healthz", headers={"X-Request-ID": given})
    assert re.fullmatch(r"[0-9a-f]{32}", reply.headers["X-Request-ID"])


@pytest.mark.parametrize("path", ["/", "/test", "/healthz", "/nothing", "/static/style.css"])
def test_every_answer_carries_the_security_headers(path: str) -> None:
    with client().get(path) as reply:
        headers = reply.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for rule in ("script-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"):
        assert f"{rule};" in f"{policy};"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert "payment=()" in headers["Permissions-Policy"]
    assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_ready_asks_each_model_its_sample_at_most_once_a_second() -> None:
    fake = FakeClassifier()
    browser = client(fake)
    replies = [browser.get("/readyz") for _ in range(5)]
    assert {reply.status_code for reply in replies} == {200}
    ready = replies[0].get_json()
    assert ready.pop("systems")["food11"] == ready
    assert ready == {"ready": True, "model": {"name": "food_classifier", "version": "3"}}
    samples = [system.sample() for system in load_all().values() if isinstance(system, PictureClassifier)]
    assert sorted(fake.asked) == sorted(samples)


@pytest.mark.parametrize(("fault", "status", "code", "retry"), FAULTS[:5], ids=lambda value: str(value)[:20])
def test_not_ready_is_503_whatever_the_reason(
    fault: Exception, status: int, code: str, retry: str | None
) -> None:
    reply = client(fault).get("/readyz")
    assert reply.status_code == 503
    assert reply.get_json()["ready"] is False
    assert reply.get_json()["error"]["code"] == code
    assert reply.headers["Retry-After"]


def test_metrics_count_requests_photos_and_phases() -> None:
    browser = client()
    post(browser)
    post(browser, b"text")
    text = browser.get("/metrics").text
    assert 'web_requests_total{method="POST",route="/predict",status="200"} 1.0' in text
    assert 'web_requests_total{method="POST",route="/predict",status="400"} 1.0' in text
    assert 'food_predictions_total{label="Egg",model="food_classifier"} 1.0' in text
    assert 'food_phase_seconds_count{phase="triton"} 1.0' in text
    browser.get("/some/unknown/address")
    assert 'route="unknown"' in browser.get("/metrics").text
