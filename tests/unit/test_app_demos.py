"""Translations, captions and digits: what is refused, what answers look like, and the pages."""

from __future__ import annotations

import base64
import re
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from flask.testing import FlaskClient
from openapi_spec_validator import validate
from support.fake_classifier import FakeClassifier, client, form, knowing
from support.listener import Listen, Listener, http, ready, serving, tensor
from werkzeug.test import TestResponse

from app import create_app
from app.models import Prediction
from app.pages.caption import Captioned, Captions
from app.pages.digits import Digits
from app.pages.translate import MAX_TEXTS
from app.web import errors
from app.web.http import options_of_route
from app.web.settings import Rate, Settings
from gourmet.commands.translate import translate
from gourmet.pictures.decode import PictureError
from gourmet.systems.captioner.contract import SYSTEM
from gourmet.systems.digits.contract import SYSTEM as DIGITS
from gourmet.systems.food11.contract import SYSTEM as FOOD

TRANSLATE = "/api/v1/translate"


@pytest.fixture(scope="module")
def alone() -> FlaskClient:
    return create_app(Settings(triton_url="127.0.0.1:9")).test_client()  # where nobody answers


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "the body: send either text or texts; expected is"),
        ({"texts": ["Да."], "stream": True}, "only a single text is streamed"),
        ({"texts": ["Да."] * (MAX_TEXTS + 1)}, "at most 32"),
        ({"texts": ["Да.", " "]}, "texts.1: the text is empty"),
        ({"text": "а" * 2001}, "2,001 characters; at most 2,000"),
        ({"text": "Да.", "options": {"beams": "many"}}, "options.beams: "),
    ],
)
def test_an_invalid_translation_request_is_refused_without_calling_a_model(
    alone: FlaskClient, body: Any, words: str
) -> None:
    reply = alone.post(TRANSLATE, json=body)
    assert reply.status_code == 400
    assert words in reply.json["error"]["message"]


def test_a_call_with_too_many_sentences_is_refused_with_the_limit(alone: FlaskClient) -> None:
    texts = ["\n".join(["Да."] * 100)] * 4
    reply = alone.post(TRANSLATE, json={"texts": [*texts, "Да."]})
    assert (reply.status_code, reply.json["error"]["code"]) == (413, "too_many_sentences")
    assert "the texts have 401 sentences or lines together; at most 400" in reply.json["error"]["message"]
    assert alone.post(TRANSLATE, json={"texts": texts}).status_code == 503  # no Triton is there


def test_a_text_of_a_megabyte_is_refused_before_it_is_read_as_json(alone: FlaskClient) -> None:
    reply = alone.post(TRANSLATE, data=b"[" * 1_000_000, content_type="application/json")
    assert (reply.status_code, reply.json["error"]["code"]) == (413, "upload_too_large")
    assert "the text is too long: send at most 768 KB of JSON" in reply.json["error"]["message"]


def test_the_translation_page_works_without_a_script_and_without_a_model(alone: FlaskClient) -> None:
    page = knowing(alone, "translator").get("/translate").text
    assert re.search(r'<form[^>]*method="post"[^>]*action="/translate"', page)
    assert "At most 2,000 characters." in page
    assert "maxlength" not in page  # which would cut a longer text silently
    assert "cannot be translated at the moment" in page
    reply = alone.post("/translate", data={"text": "  "})
    assert (reply.status_code, "the text is empty" in reply.text) == (400, True)
    reply = alone.post("/translate", data={"text": "<b>Да.</b>"})
    assert reply.status_code == 503
    assert "&lt;b&gt;Да.&lt;/b&gt;</textarea>" in reply.text


def _starting(translation: str = "Yes.", sentences: str | None = None, **parameters: str) -> dict[str, bytes]:
    """Return the answers of a Triton after a restart: `translator` is there, and nothing else yet."""
    outputs = [
        tensor("TRANSLATION", "BYTES", translation),
        tensor("TOKENS", "INT32", 2),
        tensor("SCORE", "FP32", -0.1),
    ]
    if sentences is not None:
        outputs.append(tensor("SENTENCES", "BYTES", sentences))
    inputs = [tensor("TEXT", "BYTES", shape=(-1, 1))]
    model = serving("translator", inputs, outputs, b"", 32, system="translator", **parameters)
    return model | ready("translator")


def translating(listen: Listen, *answer: str, **parameters: str) -> FlaskClient:
    """Return a client of the app before a Triton that gives this answer."""
    return create_app(Settings(triton_url=listen(_starting(*answer, **parameters)).url)).test_client()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_a_piece_is_an_error(listen: Listen, stream: bool) -> None:
    config = {"model_transaction_policy": {"decoupled": True}, "max_batch_size": 32}
    nothing = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    script = {"/generate_stream": nothing, **_starting(), "/translator/config": http(config)}
    browser = create_app(Settings(triton_url=listen(script).url)).test_client()
    reply = browser.post(TRANSLATE, json={"text": "Да.", "stream": stream})
    assert (reply.status_code, reply.json["error"]["code"]) == (502, "inference_failed")


def test_a_warning_is_the_same_on_page_stream_api_and_verb(listen: Listen) -> None:
    url = listen(_starting()).url
    browser = create_app(Settings(triton_url=url)).test_client()
    body = {"text": "Да, в 1869 году.", "model": "translator"}
    (translation,) = browser.post(TRANSLATE, json=body).json["translations"]
    warning = translation["warning"]
    assert warning == "not in the translation as written: 1869"
    done = browser.post(TRANSLATE, json={**body, "stream": True}).text.partition("event: done")[2]
    assert f'"warning":"{warning}"' in done
    assert browser.post("/api/v1/generate", json=body).json["warning"] == warning
    page = browser.post("/translate", data={"text": body["text"]}).text
    assert re.search(rf'id="doubt" role="status"><strong>Careful:</strong> <span>{warning}', page)
    verb = CliRunner().invoke(translate, [body["text"], "--url", url])
    assert (verb.exit_code, verb.stdout) == (0, "Yes.\n")
    assert verb.stderr == f"Warning: text 1: {warning}\n"
    fine = browser.post("/translate", data={"text": "Да."}).text
    assert 'id="doubt" role="status" hidden' in fine


def test_a_rough_guess_is_the_same_on_page_stream_api_and_verb(listen: Listen) -> None:
    url = listen(_starting("Yes. <i>Nix</i>.", "[[0, 4, -0.1], [5, 16, -0.9]]", threshold="-0.5")).url
    browser = create_app(Settings(triton_url=url)).test_client()
    body = {"text": "Да. Нет.", "model": "translator"}
    (translation,) = browser.post(TRANSLATE, json=body).json["translations"]
    assert translation["sure"] is False
    sentences = [
        {"text": "Yes.", "score": -0.1, "sure": True},
        {"text": "<i>Nix</i>.", "score": -0.9, "sure": False},
    ]
    assert translation["sentences"] == sentences
    done = browser.post(TRANSLATE, json={**body, "stream": True}).text.partition("event: done")[2]
    assert '"sure":false,"sentences":[{"text":"Yes.","score":-0.1,"sure":true}' in done
    assert browser.post("/api/v1/generate", json=body).json["sentences"] == sentences
    page = browser.post("/translate", data={"text": body["text"]}).text
    assert "Yes. <mark>&lt;i&gt;Nix&lt;/i&gt;.</mark></output>" in page
    assert "<strong>Rough guess:</strong> <span>the model is not sure of what is underlined" in page
    verb = CliRunner().invoke(translate, [body["text"], "--url", url])
    assert verb.stderr == "Warning: 1 of 1 are rough guesses: text 1\n"


@pytest.mark.parametrize(
    ("threshold", "text", "sure", "words"),
    [
        ("-0.5", "Да.", True, ""),
        ("-0.05", "Да.", False, "Rough guess:</strong> <span>the model is sure of no sentence"),
        ("-0.5", "Да, 7.", False, "Rough guess:</strong> <span>not in the translation as written: 7</span>"),
        ("", "Да, 7.", None, "Careful:</strong> <span>not in the translation as written: 7</span>"),
    ],
)
def test_a_text_is_sure_where_its_score_is_high_enough_and_nothing_about_it_is_doubtful(
    listen: Listen, threshold: str, text: str, sure: bool | None, words: str
) -> None:
    browser = translating(listen, "Yes.", "[[0, 4, -0.1]]", threshold=threshold)
    (translation,) = browser.post(TRANSLATE, json={"text": text, "model": "translator"}).json["translations"]
    assert translation.get("sure") is sure
    assert "sentences" not in translation
    page = browser.post("/translate", data={"text": text}).text
    assert words in page
    assert "<mark>" not in page  # where all is a guess, the line above says so
    assert ('id="doubt" role="status" hidden' in page) is (not words)


@pytest.mark.parametrize("told", ["", "[[0, 1]]", '[["a", 1, 2]]', "{", "[" * 9_000])
def test_sentences_that_cannot_be_read_are_the_fault_of_the_model(listen: Listen, told: str) -> None:
    browser = translating(listen, "Yes.", told, threshold="-1")
    reply = browser.post(TRANSLATE, json={"text": "Да.", "model": "translator"})
    assert (reply.status_code, reply.json["error"]["code"]) == (502, "inference_failed")


@pytest.mark.parametrize("threshold", ["sure", "nan"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_threshold_that_is_not_a_number_is_the_fault_of_the_model(
    listen: Listen, threshold: str, stream: bool
) -> None:
    browser = translating(listen, "Yes.", "[]", threshold=threshold)
    reply = browser.post(TRANSLATE, json={"text": "Да.", "model": "translator", "stream": stream})
    assert (reply.status_code, reply.json["error"]["code"]) == (502, "inference_failed")
    assert "it must be a number" in reply.json["error"]["message"]


def _error(reply: TestResponse) -> Any:
    """The error of a call, or of its only photo."""
    return (reply.json if "error" in reply.json else reply.json["results"][0])["error"]


@pytest.mark.parametrize("expected", [(), ("translator", "translator_stream", "food_classifier_onnx")])
def test_while_models_load_streams_are_answered_whole_and_named_models_get_503(
    listen: Listen, expected: tuple[str, ...]
) -> None:
    settings = Settings(triton_url=listen(_starting()).url, served_models=expected)
    browser = create_app(settings).test_client()
    stream = browser.post(TRANSLATE, json={"text": "Да.", "stream": True})
    assert stream.status_code == 200
    assert '"text":"Yes."' in stream.text
    late = {"model": "translator_stream"}
    replies = [
        browser.post(TRANSLATE, json={"text": "Да.", "stream": True, **late}),
        browser.post(TRANSLATE, json={"text": "Да.", **late}),
        browser.post("/api/v1/generate", json={"text": "Да.", "stream": True, **late}),
        browser.post("/api/v1/generate", json={"text": "Да.", **late}),
        browser.post("/api/v1/classify?model=food_classifier_onnx", data=form(FOOD.sample())),
    ]
    results = [(reply.status_code, _error(reply)["code"]) for reply in replies]
    assert results == [(503, "model_not_ready") if expected else (404, "unknown_model")] * len(replies)
    assert all(("Retry-After" in reply.headers) == bool(expected) for reply in replies)
    assert browser.post(TRANSLATE, json={"text": "Да.", "model": "nobody"}).status_code == 404


# Captions
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


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"images": []}, 400, "images: "),
        ({"images": [ENCODED], "options": {"beams": 9}}, 400, "BEAMS is 9; it has to be from 1 to 4"),
        ({"images": [ENCODED, ENCODED], "options": {"heat": 1}}, 400, "'heat' is not an option of captioner"),
        ({"images": [ENCODED, ENCODED], "stream": True}, 400, "only a single photo is streamed"),
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
    assert not any(path.endswith("/infer") for path in triton.asked)


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
def test_a_caption_is_sure_by_the_model_s_threshold(
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
        values, pattern = allowed[name].get("enum", ()), allowed[name].get("pattern", "^$")
        for number in range(maximum + 2):
            is_allowed = str(number) in values or re.search(pattern, str(number)) is not None
            assert is_allowed is (minimum <= number <= maximum), (name, number)
    page = browser.get("/api/docs").text
    assert "Caption each photo of the request" in page
    assert "$API/caption?stream=1" in page


# Digits
THREE = Prediction(
    DIGITS,
    DIGITS.labels,
    probabilities=(0.01, 0.02, 0.03, 0.85, 0.01, 0.01, 0.02, 0.02, 0.02, 0.01),
    model="digits",
    version="4",
    threshold=0.76,
    timings_ms={"decode": 1.5, "preprocess": 0.1, "triton": 1.25},
)
AWAY = errors.ServingError("triton_unavailable", "no Triton answers")
PAGE = {"Accept": "text/html"}


def digits_client(digits: Any = THREE, **settings: Any) -> FlaskClient:
    return client(FakeClassifier(others={"digits": digits}), **settings)


def test_a_digit_is_answered_with_the_probabilities_of_all_ten_as_the_document_says() -> None:
    browser = digits_client()
    reply = browser.post("/api/v1/digits", data=form())
    assert reply.status_code == 200
    (result,) = reply.get_json()["results"]
    assert (result["label"], result["sure"], result["threshold"]) == ("3", True, 0.76)
    assert result["probabilities"] == list(THREE.probabilities)
    assert result["model"] == {"name": "digits", "version": "4"}
    made = browser.get("/api/v1/openapi.json").get_json()
    validate(made)
    content = made["paths"]["/api/v1/digits"]["post"]["responses"]["200"]["content"]
    schema = {**content["application/json"]["schema"], "components": made["components"]}
    jsonschema.Draft202012Validator(schema).validate(reply.get_json())
    Digits.model_validate(reply.get_json())
    assert "digits_predictions_total" in browser.get("/metrics").text


@pytest.mark.parametrize("code", ["blank", "several_digits"])
def test_a_picture_of_no_digit_or_several_is_a_client_error(code: str) -> None:
    reply = digits_client(PictureError(code, "not one digit")).post("/api/v1/digits", data=form())
    assert (reply.status_code, reply.get_json()["results"][0]["error"]["code"]) == (400, code)


def test_the_digits_page_reports_a_missing_model() -> None:
    reply = knowing(digits_client(AWAY), DIGITS.name).get("/digits", headers=PAGE)
    assert reply.status_code == 200
    assert re.search(r"<noscript>.*no Triton answers.*</noscript>", reply.text)
    assert digits_client(AWAY).post("/digits", data=form()).status_code == 503
