"""POST /api/v1/translate and the form of /translate under gunicorn, with the shipped models."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from support.hostile_texts import hostile_text
from support.web_app import StartWeb, WebApp

from gourmet.serving.waiting import wait_until
from gourmet.systems.translator.contract import SYSTEM

TRANSLATE = "/api/v1/translate"
JSON_TYPE = {"Content-Type": "application/json"}
TEXTS = [text.decode() for text in SYSTEM.examples(6, seed=1)]
# As long as a text may be: what is tested has to happen before it is translated.
LONG = ("Мой старый друг " + "и его младшая сестра и их добрая тётя " * 5 + "пришли домой. ") * 9
# The network goes on about this until it is stopped: for a second and more after the first words.
ENDLESS = "Да, " * 490
HOSTILE = 300


@pytest.fixture(scope="module")
def web(start: StartWeb, triton: Any) -> WebApp:
    return start(triton.http_url, WEB_CONCURRENCY="1")


def ask(web: WebApp, **body: Any) -> Any:
    return web.request("POST", TRANSLATE, json.dumps(body), Content_Type="application/json")


def events(lines: Iterator[bytes]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith(b"event: "):
            name = line.decode()[7:].strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


def test_texts_are_translated_in_their_order_each_as_alone(web: WebApp) -> None:
    together = ask(web, texts=TEXTS)
    assert together.status == 200
    assert together.json["model"]["name"] == "translator"
    assert together.json["timings_ms"].keys() >= {"triton", "total"}
    found = [each["text"] for each in together.json["translations"]]
    assert found == [ask(web, text=text).json["translations"][0]["text"] for text in TEXTS]
    for each in together.json["translations"]:
        assert each["tokens"] > 0
        assert each["score"] < 0
        assert "warning" not in each


def test_words_come_as_server_sent_events_and_the_whole_last(web: WebApp) -> None:
    whole = ask(web, text=TEXTS[0]).json["translations"][0]
    reply = ask(web, text=TEXTS[0], stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *pieces, (name, done) = events(iter(reply.body.splitlines()))
    assert {name for name, _ in pieces} == {"piece"}
    assert len(pieces) > 1
    assert "".join(piece["text"] for _, piece in pieces) == whole["text"] == done["text"]
    assert (done["tokens"], done["score"]) == (whole["tokens"], whole["score"])
    assert (name, done["model"]["name"]) == ("done", "translator_stream")
    assert done["timings_ms"]["first_piece"] < done["timings_ms"]["triton"]


def same_as_by_default(web: WebApp, found: Any, model: str) -> None:
    assert found["model"]["name"] == model
    right = ask(web, texts=TEXTS[:2]).json["translations"]
    assert [each["text"] for each in found["translations"]] == [each["text"] for each in right]


def test_any_of_its_models_may_be_asked_by_name(web: WebApp) -> None:
    same_as_by_default(
        web, ask(web, texts=TEXTS[:2], model=SYSTEM.streaming_model).json, SYSTEM.streaming_model
    )


def test_the_model_that_costs_most_is_not_answered_by_unless_it_is_configured(
    web: WebApp, start: StartWeb, triton: Any
) -> None:
    refused = ask(web, texts=TEXTS[:2], model="translator_bls")
    assert (refused.status, refused.json["error"]["code"]) == (404, "unknown_model")
    assert "translator_bls" not in refused.json["error"]["message"].partition("ready for this: ")[2]
    configured = start(triton.http_url, WEB_CONCURRENCY="1", TRANSLATOR_MODEL_NAME="translator_bls")
    same_as_by_default(web, ask(configured, texts=TEXTS[:2]).json, "translator_bls")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"text": "\ud800"}, 400, "Invalid JSON"),
        ({"text": "Да.", "options": {"beams": 9}}, 400, "from 1 to 4"),
        ({"text": "Да.", "options": {"heat": 1}}, 400, "not an option"),
        ({"text": "Да.", "model": "digits"}, 404, "digits"),
        ({"text": "a" * 2_000_000}, 413, "too long"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_what_is_allowed(
    web: WebApp, body: Any, status: int, words: str
) -> None:
    reply = ask(web, **body)
    assert (reply.status, words in reply.json["error"]["message"]) == (status, True), reply.json


def test_what_is_hardly_russian_is_translated_with_a_warning(web: WebApp) -> None:
    english, russian = ask(web, texts=["Where is the library?", TEXTS[0]]).json["translations"]
    assert "not look Russian" in english["warning"]
    assert "warning" not in russian


def test_hostile_texts_cost_nobody_else_an_answer(web: WebApp) -> None:
    draw = random.Random(5)
    texts = [hostile_text(draw) for _ in range(HOSTILE)]
    right = ask(web, text=TEXTS[1]).json["translations"]

    def send(number: int) -> bool:
        if number % 10 == 0:
            return bool(ask(web, text=TEXTS[1]).json["translations"] == right)
        reply = ask(web, text=texts[number], stream=number % 3 == 0, options={"max_tokens": 20})
        return reply.status in (200, 400)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(send, range(HOSTILE)))


def test_who_goes_away_has_the_model_stop_and_gives_the_turn_back(web: WebApp, triton: Any) -> None:
    before = len(triton.log)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
    with closing(connection):
        connection.request("POST", TRANSLATE, json.dumps({"text": ENDLESS, "stream": True}), JSON_TYPE)
        response = connection.getresponse()
        assert response.readline()
        response.close()
    wait_until(lambda: web.measured("web_photos_in_flight")["work"] == 0, 30, "the turn was not given back")
    wait_until(
        lambda: any("its client left" in line for line in triton.log[before:]), 30, "the model went on"
    )


def test_who_goes_away_has_whole_answers_stop_over_grpc(start: StartWeb, triton: Any) -> None:
    web = start(triton.http_url, WEB_CONCURRENCY="1", TRITON_GRPC_URL=triton.grpc_url)
    before = len(triton.log)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
    with closing(connection):
        connection.request("POST", TRANSLATE, json.dumps({"texts": [ENDLESS] * 8}), JSON_TYPE)
        wait_until(lambda: web.measured("web_photos_in_flight")["work"] == 1, 30, "it has not begun")
    wait_until(
        lambda: any("its client left" in line for line in triton.log[before:]), 10, "the model went on"
    )
    wait_until(lambda: web.measured("web_photos_in_flight")["work"] == 0, 10, "the turn was not given back")
    assert ask(web, text=TEXTS[0]).json["translations"]


def test_the_deadline_ends_it(start: StartWeb, triton: Any) -> None:
    hasty = start(triton.http_url, WEB_CONCURRENCY="1", GENERATE_DEADLINE_S="0.1")
    reply = ask(hasty, texts=[LONG] * 8)
    assert (reply.status, reply.json["error"]["code"]) == (504, "triton_too_slow")


def test_its_health_and_its_metrics(web: WebApp) -> None:
    list(events(iter(ask(web, text=TEXTS[0], stream=True).body.splitlines())))
    health = web.request("GET", "/api/v1/health?system=translator").json
    assert (health["ready"], health["model"]["name"]) == (True, "translator")
    text = web.request("GET", "/metrics").body.decode()
    for name in ("generations_total", "tokens_total", "first_piece_seconds_count", "piece_seconds_count"):
        assert f"\ntranslator_{name}{{" in text, name
