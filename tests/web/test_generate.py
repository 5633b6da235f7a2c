"""POST /api/v1/generate under gunicorn, of a text system that only the tests have."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.triton import ROOT, RunningTriton, run_triton
from support.web_app import WebApp, start_web

from gourmet.serving.preflight import free_ports
from gourmet.serving.waiting import wait_until

SUPPORT = ROOT / "tests" / "support"
GENERATE = "/api/v1/generate"
WHOLE = f"{GENERATE}?model=echo"
STREAM = f"{GENERATE}?model=echo_stream"
PAUSE_S = 0.3


@pytest.fixture(scope="module")
def texts() -> Iterator[RunningTriton]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_SYSTEMS", str(SUPPORT / "systems"))
        patch.setenv("ECHO_PAUSE_S", str(PAUSE_S))
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
        connection.request("POST", STREAM, body, {"X-Request-ID": "mine"})
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


def test_who_goes_away_has_the_model_stop_and_gives_the_turn_back(web: WebApp, texts: RunningTriton) -> None:
    before = "".join(texts.log).count("cancelled")
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
    with closing(connection):
        connection.request("POST", STREAM, json.dumps({"text": "word " * 100, "stream": True}))
        response = connection.getresponse()
        assert response.readline()
        assert web.measured("web_photos_in_flight")["work"] == 1
        response.close()
    wait_until(lambda: web.measured("web_photos_in_flight")["work"] == 0, 10, "the turn was not given back")
    wait_until(lambda: "".join(texts.log).count("cancelled") > before, 10, "the model went on")


def test_the_deadline_ends_it_as_an_event_or_as_a_status(web: WebApp) -> None:
    reply = ask(web, STREAM, "word " * 100, stream=True)
    *_, (name, data, _) = events(iter(reply.body.splitlines()))
    assert (reply.status, name, data["error"]["code"]) == (200, "error", "triton_too_slow")
    whole = ask(web, STREAM, "word " * 100)
    assert (whole.status, whole.json["error"]["code"]) == (504, "triton_too_slow")
    assert whole.seconds < 4


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


def test_its_health_its_metrics_and_its_place_in_the_document(web: WebApp) -> None:
    assert ask(web, WHOLE, "one two").status == 200
    health = web.request("GET", "/api/v1/health?system=echo").json
    assert (health["ready"], health["model"]["name"]) == (True, "echo")
    text = web.request("GET", "/metrics").body.decode()
    for name in ("generations_total", "tokens_total", "phase_seconds_count", "first_piece_seconds_count"):
        assert f"\necho_{name}{{" in text, name
    operation = web.request("GET", "/api/v1/openapi.json").json["paths"][GENERATE]["post"]
    assert operation["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
