"""POST /api/v1/generate under gunicorn, of two systems of the tests: texts, and pictures in words."""

from __future__ import annotations

import base64
import http.client
import json
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
JSON_TYPE = {"Content-Type": "application/json"}
WHOLE = f"{GENERATE}?model=echo"
STREAM = f"{GENERATE}?model=echo_stream"
PAUSE_S = 0.3
CAPTIONS = f"{GENERATE}?model=captions"
CAPTIONS_STREAM = f"{GENERATE}?model=captions_stream"
STEP_S = 0.02
PICTURES = [base64.b64encode(each).decode() for each in pictures(8, seed=2, side=48)]


@pytest.fixture(scope="module")
def texts() -> Iterator[RunningTriton]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_SYSTEMS", str(SUPPORT / "systems"))
        patch.setenv("ECHO_PAUSE_S", str(PAUSE_S))
        patch.setenv("CAPTIONS_PAUSE_S", str(STEP_S))
        yield from run_triton(SUPPORT / "models")


@pytest.fixture(scope="module")
def web(texts: RunningTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebApp]:
    settings = {
        "GENERATE_DEADLINE_S": "2",
        "WEB_CONCURRENCY": "1",
        "GOURMET_SYSTEMS": str(SUPPORT / "systems"),
    }
    log = tmp_path_factory.mktemp("web") / "log"
    app = start_web(log, free_ports(1)[0], texts.http_url, **settings)
    yield app
    app.stop()


def ask(web: WebApp, path: str, text: str, **more: Any) -> Any:
    body = json.dumps({"text": text, **more})
    return web.request("POST", path, body, Content_Type="application/json")


def described(web: WebApp, picture: str, **options: Any) -> Any:
    body = json.dumps({"picture": picture, "options": options})
    return web.request("POST", CAPTIONS, body, Content_Type="application/json")


def events(lines: Iterator[bytes]) -> Iterator[tuple[str, Any, float]]:
    """Each event's name and data, and when it came."""
    name = ""
    for line in lines:
        if line.startswith(b"event: "):
            name = line.decode()[7:].strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:]), time.monotonic()


@pytest.mark.parametrize("path", [WHOLE, STREAM])
def test_a_text_is_answered_whole_whether_or_not_the_model_streams(web: WebApp, path: str) -> None:
    reply = ask(web, path, "one два three")
    assert reply.status == 200
    assert (reply.json["text"], reply.json["tokens"]) == ("three два one", 3)
    assert reply.json["request_id"] == reply.headers["x-request-id"]
    assert reply.json["timings_ms"].keys() == {"receive", "triton", "total"}


def test_pieces_come_as_they_are_made_and_the_whole_answer_last(web: WebApp) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
    with closing(connection):
        body = json.dumps({"text": "one two three", "stream": True})
        connection.request("POST", STREAM, body, JSON_TYPE | {"X-Request-ID": "mine"})
        response = connection.getresponse()
        assert response.getheader("Content-Type", "").startswith("text/event-stream")
        assert response.getheader("X-Accel-Buffering") == "no"
        came = list(events(iter(response)))
    assert [(name, data["text"]) for name, data, _ in came] == [
        *(("piece", "three"), ("piece", " two"), ("piece", " one"), ("done", "three two one"))
    ]
    done = came[-1][1]
    assert (done["tokens"], done["request_id"], done["model"]["name"]) == (3, "mine", "echo_stream")
    assert done["timings_ms"]["first_piece"] < done["timings_ms"]["triton"]
    first, second, third, _ = (at for _, _, at in came)
    assert min(second - first, third - second) > PAUSE_S / 2


def test_pieces_of_a_description_come_one_by_one_behind_its_prompt(web: WebApp) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)) as connection:
        connection.request(
            "POST", CAPTIONS_STREAM, json.dumps({"picture": PICTURES[0], "stream": True}), JSON_TYPE
        )
        *pieces, (name, done, _) = events(iter(connection.getresponse()))
    assert (name, done["text"]) == ("done", "".join(piece["text"] for _, piece, _ in pieces))
    assert done["text"] == described(web, PICTURES[0]).json["text"]
    assert pieces[0][1]["text"].startswith("a photograph of")
    assert len(pieces) > 5
    assert pieces[-1][2] - pieces[0][2] > STEP_S * len(pieces) / 3


@pytest.mark.parametrize(
    ("path", "asked", "words"),
    [
        (STREAM, {"text": "word " * 100}, "cancelled"),
        (CAPTIONS_STREAM, {"picture": PICTURES[2]}, "its client left"),
    ],
)
def test_who_goes_away_has_the_model_stop_and_gives_the_turn_back(
    web: WebApp, texts: RunningTriton, path: str, asked: dict[str, str], words: str
) -> None:
    before = "".join(texts.log).count(words)
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)) as connection:
        connection.request("POST", path, json.dumps({**asked, "stream": True}), JSON_TYPE)
        response = connection.getresponse()
        assert response.readline()
        assert web.measured("web_photos_in_flight")["work"] == 1
        response.close()
    wait_until(lambda: web.measured("web_photos_in_flight")["work"] == 0, 10, "the turn was not given back")
    wait_until(lambda: "".join(texts.log).count(words) > before, 10, "the model went on")


def test_the_deadline_ends_it_as_an_event_or_as_a_status(web: WebApp) -> None:
    reply = ask(web, STREAM, "word " * 100, stream=True)
    *_, (name, data, _) = events(iter(reply.body.splitlines()))
    assert (reply.status, name, data["error"]["code"]) == (200, "error", "triton_too_slow")
    whole = ask(web, STREAM, "word " * 100)
    assert (whole.status, whole.json["error"]["code"]) == (504, "triton_too_slow")
    assert whole.seconds < 4


def test_a_picture_is_answered_whole_with_its_prompt_in_front(web: WebApp) -> None:
    replies = [described(web, picture) for picture in PICTURES]
    assert {reply.status for reply in replies} == {200}
    assert all(reply.json["text"].startswith("a photograph of ") for reply in replies)
    assert len({reply.json["text"] for reply in replies}) > len(PICTURES) / 2
    reply = described(web, f"data:image/png;base64,{PICTURES[0]}").json
    assert reply["text"] == replies[0].json["text"]
    assert reply["tokens"] == len(reply["text"].split()) - 3  # the prompt is not counted


def test_options_are_numbers_and_texts(web: WebApp) -> None:
    short = described(web, PICTURES[0], prompt="the round plate with", max_tokens=2).json
    assert short["text"].startswith("the round plate with ")
    assert short["tokens"] == 2
    greedy, searched = described(web, PICTURES[1]), described(web, PICTURES[1], beams=4)
    assert searched.json["score"] >= greedy.json["score"] - 1e-3


def test_those_asked_together_have_the_answers_that_they_have_alone(web: WebApp) -> None:
    alone = [described(web, picture, max_tokens=6).json["text"] for picture in PICTURES]
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: described(web, each, max_tokens=6), PICTURES))
    assert [reply.json["text"] for reply in together] == alone
    # One after another they would take eight times nine steps.
    assert time.monotonic() - began < 8 * 9 * STEP_S


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (f"{GENERATE}?model=nobody", {"text": "a", "stream": True}, 404, "unknown_model"),
        (f"{WHOLE}&beam=2", {"text": "a"}, 400, "bad_request"),
        (GENERATE, {"text": "no model, and more than one system"}, 400, "bad_request"),
        (WHOLE, {"text": ""}, 400, "bad_request"),
        (WHOLE, {"txt": "a"}, 400, "bad_request"),
        (WHOLE, {"text": "a", "options": {"beam": 2}}, 400, "bad_request"),
        (WHOLE, {"text": "a" * 300_000}, 400, "bad_request"),
        # Larger than a picture may be, which a system of these tests answers.
        (WHOLE, {"text": "a" * 20_000_000}, 413, "upload_too_large"),
    ],
)
def test_what_cannot_be_answered_has_the_status_of_its_error(
    web: WebApp, path: str, body: Any, status: int, code: str
) -> None:
    reply = web.request("POST", path, json.dumps(body), Content_Type="application/json")
    assert (reply.status, reply.json["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"picture": "bm9ib2R5"}, "not a picture"),
        ({"picture": "§"}, "not valid base64"),
        ({"picture": PICTURES[0], "text": "both"}, "send either text or picture"),
        ({"text": "what is it?"}, "captions answers a picture: send that, not a text"),
        ({"picture": PICTURES[0], "model": "echo"}, "echo answers a text: send that, not a picture"),
        ({"picture": PICTURES[0], "options": {"prompt": "a photograph of tea"}}, "not known: tea"),
        ({"picture": PICTURES[0], "options": {"beams": 9}}, "from 1 to 4"),
        ({"picture": PICTURES[0], "options": {"heat": 1}}, "not an option"),
    ],
)
def test_what_cannot_be_described_is_refused_with_what_is_allowed(web: WebApp, body: Any, words: str) -> None:
    request = json.dumps({"model": "captions", **body})
    reply = web.request("POST", GENERATE, request, Content_Type="application/json")
    assert (reply.status, words in reply.json["error"]["message"]) == (400, True), reply.json


def test_its_health_its_metrics_and_its_place_in_the_document(web: WebApp) -> None:
    assert ask(web, WHOLE, "one two").status == 200
    for name in ("echo", "captions"):
        health = web.request("GET", f"/api/v1/health?system={name}").json
        assert (health["ready"], health["model"]["name"]) == (True, name)
    text = web.request("GET", "/metrics").body.decode()
    for name in ("generations_total", "tokens_total", "phase_seconds_count", "first_piece_seconds_count"):
        assert f"\necho_{name}{{" in text, name
    operation = web.request("GET", "/api/v1/openapi.json").json["paths"][GENERATE]["post"]
    assert operation["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
    fields = web.request("GET", "/api/v1/openapi.json").json["components"]["schemas"]["GenerateRequest"]
    assert fields["properties"].keys() == {"text", "picture", "stream", "model", "version", "options"}
    assert "base64" in fields["properties"]["picture"]["description"]
