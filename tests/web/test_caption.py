"""/api/v1/caption under gunicorn before a real Triton: whole, in pieces, and what is sent to do harm."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import hostile
from support.planted import gif, plant
from support.slow_captioner import slow_captioner
from support.triton import RunningTriton, run_triton
from support.web_app import StartWeb, WebApp, form

from gourmet.pictures.made_up import pictures
from gourmet.serving.waiting import wait_until

CAPTION = "/api/v1/caption"
STEP_S = 0.03
PHOTOS = pictures(6, seed=2, side=48)
SYSTEMS = Path(__file__).parents[1] / "support" / "systems"


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plant(tmp_path_factory.mktemp("faults")).items():
            patch.setenv(name, value)
        patch.setenv("GOURMET_SYSTEMS", str(SYSTEMS))
        patch.setenv("CAPTIONS_PAUSE_S", str(STEP_S))
        yield from run_triton(slow_captioner(tmp_path_factory.mktemp("captioner"), threshold=-0.6))


@pytest.fixture(scope="module")
def web(captioner: RunningTriton, start: StartWeb) -> WebApp:
    return start(captioner.http_url, WEB_CONCURRENCY="1", MAX_UPLOAD_MB="2")


def described(web: WebApp, *photos: bytes, query: str = "") -> Any:
    body, headers = form(*photos)
    return web.request("POST", CAPTION + query, body, **headers)


def events(response: Iterator[bytes]) -> Iterator[tuple[str, Any, float]]:
    """Each event's name and data, and when it came."""
    name = ""
    for line in response:
        if line.startswith(b"event: "):
            name = line.decode()[7:].strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:]), time.monotonic()


def test_photos_are_described_whole_each_as_it_is_alone(web: WebApp) -> None:
    reply = described(web, *PHOTOS)
    found = reply.json["results"]
    assert (reply.status, len(found)) == (200, len(PHOTOS))
    alone = [described(web, photo).json["results"][0] for photo in PHOTOS]
    assert [each["text"] for each in found] == [each["text"] for each in alone]
    assert len({each["text"] for each in found}) > len(PHOTOS) / 2
    for each in found:
        assert each["sure"] is (each["score"] >= -0.6)
        assert each["tokens"] == len(each["text"].split()) - 3  # the prompt is not counted
        assert each["timings_ms"].keys() >= {"receive", "decode", "triton", "total"}
    assert [each["filename"] for each in found] == [f"{number}.jpg" for number in range(len(PHOTOS))]


def test_words_of_one_photo_come_one_by_one_and_at_the_end_the_whole(web: WebApp) -> None:
    whole = described(web, PHOTOS[0]).json["results"][0]
    body, headers = form(PHOTOS[0])
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
        connection.request("POST", f"{CAPTION}?stream=1", body, headers)
        response = connection.getresponse()
        assert response.getheader("Content-Type", "").startswith("text/event-stream")
        *pieces, (name, done, _) = events(iter(response))
    assert (name, done["text"]) == ("done", "".join(piece["text"] for _, piece, _ in pieces))
    assert (done["text"], done["sure"]) == (whole["text"], whole["sure"])
    assert done["model"]["name"] == "captioner_stream"
    assert 0 < done["timings_ms"]["first_piece"] < done["timings_ms"]["triton"]
    assert len(pieces) > 5
    assert pieces[-1][2] - pieces[0][2] > STEP_S * len(pieces) / 3


def test_options_come_as_parameters_as_fields_and_as_json(web: WebApp) -> None:
    body, headers = form(PHOTOS[0])
    boundary = headers["Content-Type"].partition("=")[2]
    field = f'--{boundary}\r\nContent-Disposition: form-data; name="max_tokens"\r\n\r\n4\r\n'.encode()
    encoded = {"images": [base64.b64encode(PHOTOS[0]).decode()], "options": {"max_tokens": 4}}
    replies = [
        described(web, PHOTOS[0], query="?max_tokens=4"),
        web.request("POST", CAPTION, field + body, **headers),
        web.request("POST", CAPTION, json.dumps(encoded), Content_Type="application/json"),
        web.request("POST", f"{CAPTION}?max_tokens=4", PHOTOS[0], Content_Type="image/png"),
    ]
    (text,) = {reply.json["results"][0]["text"] for reply in replies}
    assert {reply.json["results"][0]["tokens"] for reply in replies} == {4}
    prompted = described(web, PHOTOS[0], query="?prompt=the+red+bowl&max_tokens=3").json["results"][0]
    assert prompted["text"].startswith("the red bowl ")
    assert prompted["text"] != text


def test_beams_tell_what_else_they_found_and_a_stream_has_none(web: WebApp) -> None:
    (found,) = described(web, PHOTOS[1], query="?beams=4&max_tokens=8").json["results"]
    wordings = [found["text"], *found["alternatives"]]
    assert len(set(wordings)) == len(wordings) == 4
    assert "alternatives" not in described(web, PHOTOS[1]).json["results"][0]
    refused = described(web, PHOTOS[1], query="?beams=4&stream=1")
    assert (refused.status, "'beams' is not an option" in refused.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("photo", "status", "code"),
    [
        (b"no picture", 400, "not_a_picture"),
        (b"<svg/>", 415, "unsupported_format"),
        (PHOTOS[0] + b"x" * 2_000_001, 413, "upload_too_large"),
        (hostile.encoded(hostile.scene(), "JPEG")[:-200], 400, "broken_picture"),
        (hostile.lying_avif(16_000), 400, "broken_picture"),
    ],
    ids=["text", "svg", "large", "cut off", "lying avif"],
)
def test_a_photo_that_cannot_be_used_is_refused_and_harms_no_other(
    web: WebApp, photo: bytes, status: int, code: str
) -> None:
    reply = described(web, photo)
    assert (reply.status, reply.json["results"][0]["error"]["code"]) == (status, code)
    streamed = described(web, photo, query="?stream=1")
    if streamed.status == 200:  # decoding it took so long that its answer had begun
        (_, error, _) = list(events(iter(streamed.body.splitlines())))[-1]
        assert error["error"]["code"] == code
    else:
        assert (streamed.status, streamed.json["error"]["code"]) == (status, code)
    results = described(web, photo, PHOTOS[0]).json["results"]
    assert [results[0]["error"]["code"], bool(results[1]["text"])] == [code, True]


@pytest.mark.slow
def test_a_picture_whose_decoder_never_returns_is_given_up_and_others_are_answered(web: WebApp) -> None:
    refused, answered = described(web, gif("never returns"), PHOTOS[0]).json["results"]
    assert refused["error"]["code"] == "too_slow", refused
    assert answered["text"].startswith("a photograph of ")


def test_who_goes_away_has_the_model_stop_and_gives_the_turn_back(
    web: WebApp, captioner: RunningTriton
) -> None:
    before = "".join(captioner.log).count("its client left")
    body, headers = form(PHOTOS[2])
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)) as connection:
        connection.request("POST", f"{CAPTION}?stream=1", body, headers)
        response = connection.getresponse()
        assert response.readline()
        response.close()
    wait_until(lambda: web.measured("web_photos_in_flight")["work"] == 0, 10, "the turn was not given back")
    wait_until(lambda: "".join(captioner.log).count("its client left") > before, 10, "the model went on")


def test_its_health_its_metrics_and_its_place_among_the_pages(web: WebApp) -> None:
    health = web.request("GET", "/api/v1/health?system=captioner").json
    assert (health["ready"], health["model"]["name"]) == (True, "captioner")
    assert '<a href="/caption"' in web.request("GET", "/digits").body.decode()
    assert described(web, PHOTOS[0]).status == 200
    text = web.request("GET", "/metrics").body.decode()
    for name in ("generations_total", "tokens_total", "phase_seconds_count", "first_piece_seconds_count"):
        assert f"\ncaptioner_{name}{{" in text, name
