"""A picture-to-words system that only the tests have, under gunicorn: nothing outside the tests names it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from support.triton import ROOT, RunningTriton, run_triton
from support.web_app import WebApp, start_web

from gourmet.pictures.made_up import pictures
from gourmet.serving.preflight import free_ports
from gourmet.serving.waiting import wait_until

SUPPORT = ROOT / "tests" / "support"
GENERATE = "/api/v1/generate"
PAUSE_S = 0.02
PICTURES = [base64.b64encode(each).decode() for each in pictures(8, seed=2, side=48)]


@pytest.fixture(scope="module")
def captions() -> Iterator[RunningTriton]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_SYSTEMS", str(SUPPORT / "systems"))
        patch.setenv("CAPTIONS_PAUSE_S", str(PAUSE_S))
        yield from run_triton(SUPPORT / "models")


@pytest.fixture(scope="module")
def web(captions: RunningTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebApp]:
    settings = {
        "GENERATE_DEADLINE_S": "5",
        "WEB_CONCURRENCY": "1",
        "GOURMET_SYSTEMS": str(SUPPORT / "systems"),
    }
    log = tmp_path_factory.mktemp("web") / "log"
    app = start_web(log, free_ports(1)[0], captions.http_url, **settings)
    yield app
    app.stop()


def ask(web: WebApp, picture: str, model: str = "captions", **more: Any) -> Any:
    body = json.dumps({"picture": picture, "model": model, **more})
    return web.request("POST", GENERATE, body, Content_Type="application/json")


def events(lines: Iterator[bytes]) -> Iterator[tuple[str, Any, float]]:
    """Each event's name and data, and when it came."""
    name = ""
    for line in lines:
        if line.startswith(b"event: "):
            name = line.decode()[7:].strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:]), time.monotonic()


def test_a_picture_is_answered_whole_with_its_prompt_in_front(web: WebApp) -> None:
    replies = [ask(web, picture) for picture in PICTURES]
    assert {reply.status for reply in replies} == {200}
    assert all(reply.json["text"].startswith("a photograph of ") for reply in replies)
    assert len({reply.json["text"] for reply in replies}) > len(PICTURES) / 2
    reply = ask(web, f"data:image/png;base64,{PICTURES[0]}").json
    assert reply["text"] == replies[0].json["text"]
    assert reply["tokens"] == len(reply["text"].split()) - 3  # the prompt is not counted


def test_pieces_come_as_they_are_made_and_the_whole_answer_last(web: WebApp) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
    with closing(connection):
        body = json.dumps({"picture": PICTURES[0], "model": "captions_stream", "stream": True})
        connection.request("POST", GENERATE, body)
        came = list(events(iter(connection.getresponse())))
    *pieces, (name, done, _) = came
    assert (name, done["text"]) == ("done", "".join(piece["text"] for _, piece, _ in pieces))
    assert done["text"] == ask(web, PICTURES[0]).json["text"]
    assert pieces[0][1]["text"].startswith("a photograph of")
    assert len(pieces) > 5
    assert pieces[-1][2] - pieces[0][2] > PAUSE_S * len(pieces) / 3


def test_options_are_numbers_and_texts(web: WebApp) -> None:
    short = ask(web, PICTURES[0], options={"prompt": "the round plate with", "max_tokens": 2}).json
    assert short["text"].startswith("the round plate with ")
    assert short["tokens"] == 2
    greedy, searched = ask(web, PICTURES[1]), ask(web, PICTURES[1], options={"beams": 4})
    assert searched.json["score"] >= greedy.json["score"] - 1e-3


def test_those_asked_together_have_the_answers_that_they_have_alone(web: WebApp) -> None:
    alone = [ask(web, picture, options={"max_tokens": 6}).json["text"] for picture in PICTURES]
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: ask(web, each, options={"max_tokens": 6}), PICTURES))
    assert [reply.json["text"] for reply in together] == alone
    # One after another they would take eight times nine steps.
    assert time.monotonic() - began < 8 * 9 * PAUSE_S


def test_who_goes_away_has_the_model_stop_and_gives_the_turn_back(
    web: WebApp, captions: RunningTriton
) -> None:
    before = "".join(captions.log).count("its client left")
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
    with closing(connection):
        body = json.dumps({"picture": PICTURES[2], "model": "captions_stream", "stream": True})
        connection.request("POST", GENERATE, body)
        response = connection.getresponse()
        assert response.readline()
        response.close()
    wait_until(lambda: web.measured("web_photos_in_flight")["work"] == 0, 10, "the turn was not given back")
    wait_until(lambda: "".join(captions.log).count("its client left") > before, 10, "the model went on")


def test_the_deadline_ends_it(captions: RunningTriton, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"GENERATE_DEADLINE_S": "0.2", "GOURMET_SYSTEMS": str(SUPPORT / "systems")}
    log = tmp_path_factory.mktemp("hasty") / "log"
    hasty = start_web(log, free_ports(1)[0], captions.http_url, **settings)
    try:
        reply = ask(hasty, PICTURES[0])
        assert (reply.status, reply.json["error"]["code"]) == (504, "triton_too_slow")
        streamed = ask(hasty, PICTURES[0], "captions_stream", stream=True)
        *_, (name, data, _) = events(iter(streamed.body.splitlines()))
        assert (name, data["error"]["code"]) == ("error", "triton_too_slow")
    finally:
        hasty.stop()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"picture": "bm9ib2R5"}, 400, "not a picture"),
        ({"picture": "§"}, 400, "not valid base64"),
        ({"picture": PICTURES[0], "text": "both"}, 400, "send either text or picture"),
        ({"text": "what is it?"}, 400, "captions answers a picture: send that, not a text"),
        ({"picture": PICTURES[0], "model": "echo"}, 400, "echo answers a text: send that, not a picture"),
        ({"picture": PICTURES[0], "options": {"prompt": "a photograph of tea"}}, 400, "not known: tea"),
        ({"picture": PICTURES[0], "options": {"beams": 9}}, 400, "from 1 to 4"),
        ({"picture": PICTURES[0], "options": {"heat": 1}}, 400, "not an option"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_what_is_allowed(
    web: WebApp, body: Any, status: int, words: str
) -> None:
    request = json.dumps({"model": "captions", **body})
    reply = web.request("POST", GENERATE, request, Content_Type="application/json")
    assert (reply.status, words in reply.json["error"]["message"]) == (status, True), reply.json


def test_its_health_and_its_place_in_the_document(web: WebApp) -> None:
    health = web.request("GET", "/api/v1/health?system=captions").json
    assert (health["ready"], health["model"]["name"]) == (True, "captions")
    document = web.request("GET", "/api/v1/openapi.json").json
    fields = document["components"]["schemas"]["GenerateRequest"]["properties"]
    assert fields.keys() == {"text", "picture", "stream", "model", "options"}
    assert "base64" in fields["picture"]["description"]


def test_nothing_outside_the_tests_names_it() -> None:
    named = ["git", "grep", "-liwE", "captions(_stream)?|caption_network", "--", "app", "src", "triton"]
    found = subprocess.run(named, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert found.stdout == ""
