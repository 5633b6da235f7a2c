"""The API of every system that generates, before a real Triton: a new system is one case more."""

from __future__ import annotations

import base64
import http.client
import json
import random
import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pytest
from support import hostile
from support.eventually import eventually
from support.triton import ROOT, RunningTriton, run_triton
from support.web_app import StartWeb, WebApp, form

from gourmet.generation.package import read_package
from gourmet.repository.models import DEFAULT_REPOSITORY, read_config
from gourmet.stack.processes import wait_until
from gourmet.systems.captioner.contract import SYSTEM as CAPTIONER
from gourmet.systems.captioner.tokenizer import WordPieces
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR

SUPPORT: Final = ROOT / "tests" / "support"
TYPE: Final = {"Content-Type": "application/json"}
TEXTS: Final = [text.decode() for text in TRANSLATOR.examples(6, seed=1)]
WORDS: Final = [f"{number} one два three" for number in range(6)]
PHOTOS: Final = CAPTIONER.examples(6, seed=2)
ENCODED: Final = [base64.b64encode(photo).decode() for photo in PHOTOS]
# The network goes on about this until it is stopped.
ENDLESS: Final = "Да, " * 490
GENERATE: Final = "/api/v1/generate"
HOSTILE: Final = 100


@dataclass(frozen=True)
class Case:
    """A system, the requests to it and the place of the answers in its responses."""

    system: str
    path: str
    one: str  # the field of a single input
    several: str  # of a list; empty where a call has one input
    answers: str
    inputs: list[str]

    def body(self, *inputs: str, **more: Any) -> str:
        if len(inputs) > 1 or self.one == self.several:
            return json.dumps({self.several: inputs, **more})
        return json.dumps({self.one: inputs[0], **more})

    def ask(self, web: WebApp, *inputs: str, **more: Any) -> Any:
        return web.request("POST", self.path, self.body(*inputs, **more), Content_Type="application/json")

    def told(self, reply: Any) -> list[dict[str, Any]]:
        assert reply.status == 200, reply.body
        return list(reply.json[self.answers]) if self.answers else [reply.json]

    @property
    def streaming_model(self) -> str:
        return f"{self.system}_stream"


LEFT: Final = "its client disconnected"  # in the log of a model
CASES: Final = {
    "translator": Case("translator", "/api/v1/translate", "text", "texts", "translations", TEXTS),
    "captioner": Case("captioner", "/api/v1/caption", "images", "images", "results", ENCODED),
    "a picture": Case("captioner", f"{GENERATE}?model=captioner", "picture", "", "", ENCODED),
    "echo": Case("echo", f"{GENERATE}?model=echo", "text", "", "", WORDS),
}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """A system that only the tests have, which takes a while for each word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_SYSTEMS", str(SUPPORT / "systems"))
        patch.setenv("ECHO_PAUSE_S", "0.1")
        yield from run_triton(SUPPORT / "models")


OWN: Final = {"WEB_CONCURRENCY": "1", "MAX_UPLOAD_MB": "2", "GOURMET_SYSTEMS": str(SUPPORT / "systems")}


@pytest.fixture(scope="module")
def shipped_web(start: StartWeb, triton: RunningTriton) -> WebApp:
    return start(triton.http_url, **OWN)


@pytest.fixture(scope="module")
def echo_web(start: StartWeb, echo: RunningTriton) -> WebApp:
    return start(echo.http_url, **OWN)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def web(request: pytest.FixtureRequest, case: Case) -> WebApp:
    web: WebApp = request.getfixturevalue("echo_web" if case.system == "echo" else "shipped_web")
    return web


def events(lines: Iterator[bytes]) -> Iterator[tuple[str, Any]]:
    """Each event's name and data."""
    name = ""
    for line in lines:
        if line.startswith(b"event: "):
            name = line.decode()[7:].strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


def stream(case: Case) -> dict[str, Any]:
    """Return the fields that request a stream; /generate uses the named model."""
    return {"stream": True} | ({} if case.several else {"model": case.streaming_model})


def streaming(case: Case) -> Case:
    return Case(**{**vars(case), "path": case.path.partition("?")[0]})


def at_work(web: WebApp) -> float:
    return web.measured("web_texts_in_flight")["work"]


# Every system


def test_inputs_have_the_same_answers_together_and_alone(web: WebApp, case: Case) -> None:
    replies = [case.ask(web, row) for row in case.inputs]
    alone = [case.told(reply)[0] for reply in replies]
    with ThreadPoolExecutor(len(case.inputs)) as pool:
        at_once = list(pool.map(lambda row: case.told(case.ask(web, row))[0], case.inputs))
    assert [answer["text"] for answer in at_once] == [answer["text"] for answer in alone]
    assert len({answer["text"] for answer in alone}) > len(alone) / 2
    assert all(answer["tokens"] > 0 for answer in alone)
    if case.several:
        together = case.told(case.ask(web, *case.inputs))
        assert [answer["text"] for answer in together] == [answer["text"] for answer in alone]
    about = replies[0].json if "timings_ms" in replies[0].json else alone[0]
    assert about["timings_ms"].keys() >= {"receive", "triton", "total"}
    assert about["request_id"] == replies[0].headers["x-request-id"]
    assert about["model"]["name"] == case.system


def test_streamed_pieces_join_to_the_whole_answer_that_comes_last(web: WebApp, case: Case) -> None:
    whole = case.told(case.ask(web, case.inputs[0]))[0]
    replies: list[Any] = []

    def is_in_pieces() -> bool:
        """Words that a network has made at once come together: asked again, they come apart."""
        replies.append(streaming(case).ask(web, case.inputs[0], **stream(case)))
        return bool(replies[-1].body.count(b"event: piece") > 1)

    eventually(is_in_pieces)
    reply = replies[-1]
    assert len(replies) == 1 or case.system != "echo", "it pauses after each word"
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"
    *pieces, (name, done) = events(iter(reply.body.splitlines()))
    assert ({name for name, _ in pieces}, name) == ({"piece"}, "done")
    assert "".join(piece["text"] for _, piece in pieces) == whole["text"] == done["text"]
    assert (done["tokens"], done["model"]["name"]) == (whole["tokens"], case.streaming_model)
    assert 0 < done["timings_ms"]["first_piece"] < done["timings_ms"]["triton"]
    assert done["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("case", "endless", "words"),
    [("translator", ENDLESS, LEFT), ("echo", "word " * 100, "cancelled")],
    indirect=["case"],
)
def test_a_disconnected_client_stops_the_model_and_frees_its_place(
    request: pytest.FixtureRequest, web: WebApp, case: Case, endless: str, words: str
) -> None:
    log = request.getfixturevalue("echo" if case.system == "echo" else "triton").log
    before = "".join(log).count(words)

    def stops() -> bool:
        """Asked again where a busy machine ended the answer before its client disconnected."""
        with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
            connection.request("POST", streaming(case).path, case.body(endless, **stream(case)), TYPE)
            response = connection.getresponse()
            assert response.readline()  # the answer has begun, and is not whole
            response.close()
        wait_until(lambda: at_work(web) == 0, 60, "the turn was not given back")
        return "".join(log).count(words) > before

    wait_until(stops, 60, "the model went on", poll_s=0.2)


def test_a_request_past_its_deadline_ends_with_a_status_or_an_event(
    start: StartWeb, echo: RunningTriton
) -> None:
    case, hasty = CASES["echo"], start(echo.http_url, **OWN, GENERATE_DEADLINE_S="0.3")
    for more in ({"model": "echo_stream"}, stream(case)):
        reply = streaming(case).ask(hasty, "word " * 100, **more)
        if reply.status == 200:
            *_, (name, body) = events(iter(reply.body.splitlines()))
            assert ("stream" in more, name, body["error"]["code"]) == (True, "error", "triton_too_slow")
        else:
            assert (reply.status, reply.json["error"]["code"]) == (504, "triton_too_slow")


def test_a_text_system_is_ready_counted_and_documented(web: WebApp, case: Case) -> None:
    case.told(case.ask(web, case.inputs[0]))
    assert streaming(case).ask(web, case.inputs[0], **stream(case)).status == 200
    address = f"/api/v1/health?system={case.system}"
    eventually(lambda: web.request("GET", address).json["ready"] is True)
    assert web.request("GET", address).json["model"]["name"] == case.system
    text = web.request("GET", "/metrics").body.decode()
    for name in ("generations_total", "tokens_total", "phase_seconds_count", "first_piece_seconds_count"):
        assert f"\n{case.system}_{name}{{" in text, name
    document = web.request("GET", "/api/v1/openapi.json").json
    answered = document["paths"][case.path.partition("?")[0]]["post"]["responses"]["200"]["content"]
    assert answered.keys() == {"application/json", "text/event-stream"}


@pytest.mark.parametrize(
    ("case", "body", "status", "words"),
    [
        ("translator", {"text": "\ud800"}, 400, "Invalid JSON"),
        ("translator", {"text": "Да.", "options": {"beams": 9}}, 400, "from 1 to 4"),
        ("translator", {"text": "Да.", "options": {"heat": 1}}, 400, "not an option"),
        ("translator", {"text": "Да.", "model": "digits"}, 404, "digits"),
        ("translator", {"text": "a" * 2_000_000}, 413, "too long"),
        ("captioner", {"images": ENCODED[:1], "options": {"beams": 4}, "stream": True}, 400, "not an option"),
        ("a picture", {"picture": "bm9ib2R5"}, 400, "not a picture"),
        ("a picture", {"picture": "§"}, 400, "not valid base64"),
        ("a picture", {"picture": ENCODED[0], "text": "both"}, 400, "send either text or picture"),
        ("a picture", {"text": "what is it?"}, 400, "captioner answers a picture"),
        ("echo", {"picture": ENCODED[0]}, 400, "echo answers a text"),
        ("echo", {"txt": "a"}, 400, "txt"),
        ("echo", {"text": "a", "model": "nobody", "stream": True}, 404, "nobody"),
        # Larger than a picture may be, which a system of these tests answers.
        ("echo", {"text": "a" * 20_000_000}, 413, "too long"),
    ],
    indirect=["case"],
)
def test_an_invalid_request_is_refused_with_the_allowed_values(
    web: WebApp, case: Case, body: Any, status: int, words: str
) -> None:
    path = case.path.partition("?")[0] if "model" in body else case.path
    reply = web.request("POST", path, json.dumps(body), Content_Type="application/json")
    assert (reply.status, words in reply.json["error"]["message"]) == (status, True), reply.json


def test_a_picture_may_be_a_data_url_and_options_are_numbers_and_texts(shipped_web: WebApp) -> None:
    case, address = CASES["a picture"], f"data:image/jpeg;base64,{ENCODED[0]}"
    (by_address,), (plain,) = (case.told(case.ask(shipped_web, given)) for given in (address, ENCODED[0]))
    assert by_address["text"] == plain["text"]
    options = {"prompt": "the round plate with", "max_tokens": 2}
    (short,) = case.told(case.ask(shipped_web, ENCODED[0], options=options))
    assert (short["text"].startswith("the round plate with "), short["tokens"]) == (True, 2)


# Translating


def test_any_model_answers_by_name_unless_it_is_not_for_the_web(
    shipped_web: WebApp, triton: RunningTriton
) -> None:
    triton.load("translator_bls")
    case = CASES["translator"]
    right = [answer["text"] for answer in case.told(case.ask(shipped_web, *TEXTS[:2]))]
    streams = case.ask(shipped_web, *TEXTS[:2], model=TRANSLATOR.streaming_model)
    assert [answer["text"] for answer in case.told(streams)] == right
    assert streams.json["model"]["name"] == TRANSLATOR.streaming_model
    refused = case.ask(shipped_web, *TEXTS[:2], model="translator_bls")
    assert (refused.status, refused.json["error"]["code"]) == (404, "unknown_model")
    assert "translator_bls" not in refused.json["error"]["message"].partition("ready models: ")[2]


def test_hostile_texts_cost_no_other_client_an_answer(shipped_web: WebApp) -> None:
    case, draw = CASES["translator"], random.Random(5)
    texts = [hostile.text(draw) for _ in range(HOSTILE)]
    right = case.told(case.ask(shipped_web, TEXTS[1]))

    def send(number: int) -> bool:
        if number % 10 == 0:
            return bool(case.told(case.ask(shipped_web, TEXTS[1])) == right)
        more = {"stream": number % 3 == 0, "options": {"max_tokens": 20}}
        return case.ask(shipped_web, texts[number], **more).status in (200, 400)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(send, range(HOSTILE)))


def test_a_disconnected_client_stops_whole_answers_over_grpc(start: StartWeb, triton: RunningTriton) -> None:
    web = start(triton.http_url, WEB_CONCURRENCY="1", TRITON_GRPC_URL=triton.grpc_url)
    case, before = CASES["translator"], len(triton.log)

    def stops() -> bool:
        with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
            connection.request("POST", case.path, case.body(*[ENDLESS] * 8), TYPE)
            # On a busy machine it may be over before it is seen to be at work: it is answered then.
            answer = [connection.sock]
            wait_until(
                lambda: at_work(web) == 1 or select.select(answer, [], [], 0)[0] != [], 60, "it has not begun"
            )
        wait_until(lambda: at_work(web) == 0, 60, "the turn was not given back")
        return any(LEFT in line for line in triton.log[before:])

    wait_until(stops, 60, "the model went on", poll_s=0.2)
    assert case.told(case.ask(web, TEXTS[0]))


# Describing photos


def described(web: WebApp, *photos: bytes, query: str = "") -> Any:
    body, headers = form(*photos)
    return web.request("POST", f"/api/v1/caption{query}", body, **headers)


def test_captions_of_a_form_have_file_names_and_sure(shipped_web: WebApp) -> None:
    results = described(shipped_web, *PHOTOS).json["results"]
    assert [result["filename"] for result in results] == [f"{number}.jpg" for number in range(len(PHOTOS))]
    config = read_config(DEFAULT_REPOSITORY / "captioner")
    threshold = float(config.parameters["threshold"].string_value)
    package = DEFAULT_REPOSITORY / "captioner" / results[0]["model"]["version"] / "model.zip"
    vocabulary = WordPieces(read_package(package))
    for result in results:
        assert result["tokens"] == len(vocabulary.encode(result["text"]))
        assert result["sure"] is (result["score"] >= threshold)
        assert "decode" in result["timings_ms"]


def test_options_are_read_from_the_query_the_form_and_json(shipped_web: WebApp) -> None:
    body, headers = form(PHOTOS[0])
    boundary = headers["Content-Type"].partition("=")[2]
    field = f'--{boundary}\r\nContent-Disposition: form-data; name="max_tokens"\r\n\r\n4\r\n'.encode()
    encoded = json.dumps({"images": ENCODED[:1], "options": {"max_tokens": 4}})
    path = "/api/v1/caption"
    replies = [
        described(shipped_web, PHOTOS[0], query="?max_tokens=4"),
        shipped_web.request("POST", path, field + body, **headers),
        shipped_web.request("POST", path, encoded, Content_Type="application/json"),
        shipped_web.request("POST", f"{path}?max_tokens=4", PHOTOS[0], Content_Type="image/png"),
    ]
    (text,) = {reply.json["results"][0]["text"] for reply in replies}
    assert {reply.json["results"][0]["tokens"] for reply in replies} == {4}
    query = "?prompt=the+red+bowl&max_tokens=3"
    (prompted,) = described(shipped_web, PHOTOS[0], query=query).json["results"]
    assert prompted["text"].startswith("the red bowl")
    assert prompted["text"] != text


def test_a_beam_search_returns_alternatives(shipped_web: WebApp) -> None:
    (result,) = described(shipped_web, PHOTOS[1], query="?beams=4&max_tokens=8").json["results"]
    wordings = [result["text"], *result["alternatives"]]
    assert len(set(wordings)) == len(wordings) == 4
    assert "alternatives" not in described(shipped_web, PHOTOS[1]).json["results"][0]


@pytest.mark.parametrize(
    ("photo", "status", "code"),
    [
        (b"no picture", 400, "not_a_picture"),
        (b"<svg/>", 415, "unsupported_format"),
        (PHOTOS[0] + b"x" * 2_000_001, 413, "upload_too_large"),
        (hostile.encoded(hostile.scene(), "JPEG")[:-200], 400, "broken_picture"),
    ],
    ids=["text", "svg", "large", "cut off"],
)
def test_an_unusable_photo_fails_alone(shipped_web: WebApp, photo: bytes, status: int, code: str) -> None:
    reply = described(shipped_web, photo)
    assert (reply.status, reply.json["results"][0]["error"]["code"]) == (status, code)
    streamed = described(shipped_web, photo, query="?stream=1")
    assert (streamed.status, streamed.json["error"]["code"]) == (status, code)
    results = described(shipped_web, photo, PHOTOS[0]).json["results"]
    assert [results[0]["error"]["code"], bool(results[1]["text"])] == [code, True]
