"""/caption and /api/v1/caption: what is refused, in which shape answers are, and what the document says."""

from __future__ import annotations

import base64
import re
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient
from support.fake_classifier import form
from support.listener import Listen, Listener, http, listen, ready, serving, tensor

from app import create_app
from app.pages.caption import Captioned, Captions
from app.web.http import options_of_route
from app.web.settings import Rate, Settings
from gourmet.systems.captioner.contract import SYSTEM

__all__ = ["listen"]  # the fixture

CAPTION = "/api/v1/caption"
PHOTO = SYSTEM.sample()
ENCODED = base64.b64encode(PHOTO).decode()
ANSWER = [
    tensor("CAPTION", "BYTES", "a dog runs"),
    tensor("TOKENS", "INT32", 3),
    tensor("SCORE", "FP32", -0.5),
    tensor("ALTERNATIVES", "BYTES", "a dog jumps\na brown dog"),
]
NAMES = ("IMAGE", "PROMPT", "MAX_TOKENS", "BEAMS")


def script(infer: bytes = b"", **parameters: str) -> dict[str, bytes]:
    """Return the answers of a Triton with `captioner` alone, whose config has these parameters."""
    inputs = [tensor(name, "BYTES", shape=(-1, 1)) for name in NAMES]
    return serving("captioner", inputs, ANSWER, infer, 8, system="captioner", **parameters) | ready(
        "captioner"
    )


@pytest.fixture
def triton(listen: Listen) -> Listener:
    return listen(script(threshold="-1"))


@pytest.fixture
def browser(triton: Listener) -> FlaskClient:
    return create_app(Settings(triton_url=triton.url)).test_client()


def asked_of(triton: Listener) -> int:
    return sum(path.endswith("/infer") for path in triton.asked)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "images: "),
        ({"images": []}, 400, "images: "),
        ({"images": [ENCODED], "texts": []}, 400, "texts: "),
        ({"images": [ENCODED], "options": {"beams": [1]}}, 400, "options.beams"),
        ({"images": [ENCODED], "options": {"beams": 9}}, 400, "BEAMS is 9; it has to be from 1 to 4"),
        ({"images": [ENCODED, ENCODED], "options": {"heat": 1}}, 400, "'heat' is not an option of captioner"),
        ({"images": [ENCODED, ENCODED], "stream": True}, 400, "only a single photo is streamed"),
        ({"images": ["§"], "stream": True}, 400, "not valid base64"),
        ({"images": [base64.b64encode(b"text").decode()], "stream": True}, 400, "not a picture"),
        ({"images": [ENCODED] * 17}, 413, "17 photos are too many"),
        ({"images": [ENCODED], "model": "nobody"}, 404, "nobody"),
    ],
)
def test_an_invalid_call_is_refused_without_calling_the_model(
    browser: FlaskClient, triton: Listener, body: Any, status: int, words: str
) -> None:
    reply = browser.post(CAPTION, json=body)
    assert (reply.status_code, words in reply.json["error"]["message"]) == (status, True), reply.json
    assert asked_of(triton) == 0


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        ("IMAGE row 0 of 1: this JPEG is cut off [broken_picture]", "broken_picture", "this JPEG is cut off"),
        ("PROMPT has 17 pieces of words", "bad_request", "PROMPT has 17 pieces of words"),
    ],
)
def test_an_error_of_the_model_is_reported_for_the_photo_or_the_call(
    listen: Listen, said: str, code: str, message: str
) -> None:
    triton = listen(script(http({"error": said}, "400 Bad Request")))
    browser = create_app(Settings(triton_url=triton.url)).test_client()
    reply = browser.post(CAPTION, data=form(PHOTO))
    error = reply.json["error"] if code == "bad_request" else reply.json["results"][0]["error"]
    assert (reply.status_code, error["code"], error["message"]) == (400, code, message)
    generated = browser.post("/api/v1/generate?model=captioner", json={"picture": ENCODED})
    assert (generated.status_code, generated.json["error"]["code"]) == (400, code)


def test_captions_match_the_openapi_document(browser: FlaskClient) -> None:
    made = browser.get("/api/v1/openapi.json").json
    reply = browser.post(CAPTION, data=form(PHOTO, PHOTO))
    assert reply.status_code == 200
    schema = made["paths"][CAPTION]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**schema, "components": made["components"]}).validate(reply.json)
    result, _ = Captions.model_validate(reply.json).results
    assert isinstance(result, Captioned)
    assert (result.text, result.tokens, result.score, result.sure) == ("a dog runs", 3, -0.5, True)
    assert result.alternatives == ["a dog jumps", "a brown dog"]
    assert (result.model.name, result.model.version) == ("captioner", "1")
    assert result.request_id == reply.headers["X-Request-ID"]
    assert result.timings_ms.decode is not None


@pytest.mark.parametrize(("threshold", "sure"), [("-1", True), ("-0.4", False), ("", None)])
def test_a_caption_has_sure_where_the_model_has_a_threshold(
    listen: Listen, threshold: str, sure: bool | None
) -> None:
    triton = listen(script(**({"threshold": threshold} if threshold else {})))
    browser = create_app(Settings(triton_url=triton.url)).test_client()
    (result,) = browser.post(CAPTION, data=form(PHOTO)).json["results"]
    assert result.get("sure") is sure
    page = browser.post("/caption", data=form(PHOTO), headers={"Accept": "text/html"}).text
    assert ("Not sure" in page) is (sure is False)
    assert "Written by a model" in page
    assert '<textarea id="caption" rows="2">a dog runs</textarea>' in page


def test_every_photo_counts_against_the_rate_limit_and_waits_with_texts(triton: Listener) -> None:
    app = create_app(Settings(triton_url=triton.url, rate_limit=Rate(4, 60)))
    browser = app.test_client()
    assert browser.post(CAPTION, data=form(PHOTO, PHOTO)).status_code == 200
    assert browser.post(CAPTION, data=form(PHOTO, PHOTO, PHOTO)).status_code == 429
    assert browser.post("/caption", data=form(PHOTO)).status_code == 200
    assert browser.post("/caption", data=form(PHOTO)).status_code == 429
    for endpoint in ("api.caption", "caption.form"):
        assert options_of_route(app.view_functions[endpoint]).admitted == "texts"


def test_the_openapi_document_has_the_caption_options_and_the_page_its_examples(browser: FlaskClient) -> None:
    parameters = browser.get("/api/v1/openapi.json").json["paths"][CAPTION]["post"]["parameters"]
    allowed = {entry["name"]: entry["schema"] for entry in parameters if "name" in entry}
    assert allowed.keys() == {"model", "version", "prompt", *SYSTEM.options, "stream"}
    for name, (minimum, maximum, _) in SYSTEM.options.items():
        for number in range(maximum + 2):
            is_allowed = str(number) in allowed[name].get("enum", ()) or bool(
                re.search(allowed[name].get("pattern", "^$"), str(number))
            )
            assert is_allowed is (minimum <= number <= maximum), (name, number)
    page = browser.get("/api/docs").text
    assert "Caption each photo of the request" in page
    assert "$API/caption?stream=1" in page
