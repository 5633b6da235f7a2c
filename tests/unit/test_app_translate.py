"""/translate and /api/v1/translate before any model is asked: what is refused, and what the document says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click.testing import CliRunner
from flask.testing import FlaskClient
from support.fake_classifier import form, knowing
from support.listener import Listen, http, listen, ready, serving, tensor
from werkzeug.test import TestResponse

from app import create_app
from app.pages.translate import MAX_TEXTS
from app.web.settings import Settings
from gourmet.commands.translate import translate
from gourmet.systems.food11.contract import SYSTEM

__all__ = ["listen"]  # the fixture

TRANSLATE = "/api/v1/translate"


@pytest.fixture(scope="module")
def browser() -> FlaskClient:
    return create_app(Settings(triton_url="127.0.0.1:9")).test_client()  # where nobody answers


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "the body: send either text or texts; expected is"),
        ({"text": "Да.", "texts": ["Да."]}, "send either text or texts"),
        ({"texts": ["Да."], "stream": True}, "only a single text is streamed"),
        ({"texts": []}, "at least 1 item"),
        ({"texts": ["Да."] * (MAX_TEXTS + 1)}, "at most 32"),
        ({"texts": ["Да.", " "]}, "texts.1: the text is empty"),
        ({"text": "\0 \0"}, "the text is empty"),
        ({"text": "а" * 2001}, "2,001 characters; at most 2,000"),
        ({"text": 7}, "a valid string"),
        ({"text": "Да.", "options": {"beams": "many"}}, "options.beams: "),
    ],
)
def test_an_invalid_translation_request_is_refused_without_calling_a_model(
    browser: FlaskClient, body: Any, words: str
) -> None:
    reply = browser.post(TRANSLATE, json=body)
    assert reply.status_code == 400
    assert words in reply.json["error"]["message"]
    assert "Value error" not in reply.json["error"]["message"]


def test_a_call_with_too_many_sentences_is_refused_with_the_limit(browser: FlaskClient) -> None:
    """It is one turn of its client's, and 3,200 lines kept others waiting while their answer was made."""
    texts = ["\n".join(["Да."] * 100)] * 4
    reply = browser.post(TRANSLATE, json={"texts": [*texts, "Да."]})
    assert (reply.status_code, reply.json["error"]["code"]) == (413, "too_many_sentences")
    assert "the texts have 401 sentences or lines together; at most 400" in reply.json["error"]["message"]
    assert browser.post(TRANSLATE, json={"texts": texts}).status_code == 503  # no Triton is there


def test_the_translation_page_works_without_a_script_and_without_a_model(
    browser: FlaskClient,
) -> None:
    page = knowing(browser, "translator").get("/translate").text
    assert re.search(r'<form[^>]*method="post"[^>]*action="/translate"', page)
    assert "At most 2,000 characters." in page
    assert "maxlength" not in page  # which would cut a longer text silently
    assert "cannot be translated at the moment" in page
    reply = browser.post("/translate", data={"text": "  "})
    assert (reply.status_code, "the text is empty" in reply.text) == (400, True)
    reply = browser.post("/translate", data={"text": "<b>Да.</b>"})
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
    """It was a successful answer with an empty text."""
    config = {"model_transaction_policy": {"decoupled": True}, "max_batch_size": 32}
    nothing = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    script = {"/generate_stream": nothing, **_starting(), "/translator/config": http(config)}
    browser = create_app(Settings(triton_url=listen(script).url)).test_client()
    reply = browser.post(TRANSLATE, json={"text": "Да.", "stream": stream})
    assert (reply.status_code, reply.json["error"]["code"]) == (502, "inference_failed")


def test_a_warning_is_the_same_on_page_stream_api_and_verb(listen: Listen) -> None:
    """The page without a script, and the verb, dropped what unstreamed JSON said."""
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


def test_a_rough_guess_is_the_same_on_page_stream_api_and_verb(
    listen: Listen,
) -> None:
    """Of several sentences each says whether it is one."""
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


@pytest.mark.parametrize("told", ["", "7", "[[0, 1]]", '[["a", 1, 2]]', "{", "[" * 9_000])
def test_sentences_that_cannot_be_read_are_the_fault_of_the_model(listen: Listen, told: str) -> None:
    browser = translating(listen, "Yes.", told, threshold="-1")
    reply = browser.post(TRANSLATE, json={"text": "Да.", "model": "translator"})
    assert (reply.status_code, reply.json["error"]["code"]) == (502, "inference_failed")


@pytest.mark.parametrize("threshold", ["sure", "nan", "1e999"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_threshold_that_is_not_a_number_is_the_fault_of_the_model(
    listen: Listen, threshold: str, stream: bool
) -> None:
    browser = translating(listen, "Yes.", "[]", threshold=threshold)
    reply = browser.post(TRANSLATE, json={"text": "Да.", "model": "translator", "stream": stream})
    assert (reply.status_code, reply.json["error"]["code"]) == (502, "inference_failed")
    assert "it must be a number" in reply.json["error"]["message"]


def _error(reply: TestResponse) -> dict[str, str]:
    """The error of a call, or of its only photo."""
    error: dict[str, str] = (reply.json if "error" in reply.json else reply.json["results"][0])["error"]
    return error


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
        browser.post("/api/v1/classify?model=food_classifier_onnx", data=form(SYSTEM.sample())),
    ]
    results = [(reply.status_code, _error(reply)["code"]) for reply in replies]
    assert results == [(503, "model_not_ready") if expected else (404, "unknown_model")] * len(replies)
    assert all(("Retry-After" in reply.headers) == bool(expected) for reply in replies)
    unknown = browser.post(TRANSLATE, json={"text": "Да.", "model": "nobody"})
    assert unknown.status_code == 404
