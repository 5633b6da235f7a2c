"""The API of every system that generates, under gunicorn before a real Triton: a new system is one case more.

Two of the systems are the product's, and two are the tests' own.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import select
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from support import hostile
from support.planted import gif, plant
from support.triton import ROOT, RunningTriton, run_triton
from support.web_app import StartWeb, WebApp, form

from gourmet.pictures.made_up import pictures
from gourmet.stack.processes import wait_until
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR

SUPPORT: Final = ROOT / "tests" / "support"
TYPE: Final = {"Content-Type": "application/json"}
TEXTS: Final = [text.decode() for text in TRANSLATOR.examples(6, seed=1)]
WORDS: Final = [f"{number} one два three" for number in range(6)]
PHOTOS: Final = pictures(6, seed=2, side=48)
ENCODED: Final = [base64.b64encode(photo).decode() for photo in PHOTOS]
# The network goes on about this until it is stopped.
ENDLESS: Final = "Да, " * 490
GENERATE: Final = "/api/v1/generate"
HOSTILE: Final = 100
THRESHOLD: Final = -0.6
CAPTIONER_MODEL = """
from gourmet.generation.triton_model import GenerationModel
from gourmet.systems.parts import SystemParts


class TritonPythonModel(GenerationModel):
    @staticmethod
    def parts_of(_):
        return SystemParts("captions")
"""


@dataclass(frozen=True)
class Case:
    """A system, the requests to it and the place of the answers in its responses."""

    system: str
    path: str
    one: str  # the field of a single input
    several: str  # of a list; empty where a call has one input
    answers: str
    inputs: list[str]
    endless: str
    left: str  # what its model logs when a client has left

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


LEFT: Final = "its client disconnected"
CASES: Final = [
    Case("translator", "/api/v1/translate", "text", "texts", "translations", TEXTS, ENDLESS, LEFT),
    Case("captioner", "/api/v1/caption", "images", "images", "results", ENCODED, ENCODED[2], LEFT),
    Case("captions", f"{GENERATE}?model=captions", "picture", "", "", ENCODED, ENCODED[2], LEFT),
    Case("echo", f"{GENERATE}?model=echo", "text", "", "", WORDS, "word " * 100, "cancelled"),
]
Webs = dict[str, tuple[WebApp, RunningTriton]]
BY_NAME: Final = {case.system: case for case in CASES}


def slow_captioner(folder: Path) -> Path:
    """A repository of the captioner with the tests' own network; its steps take CAPTIONS_PAUSE_S."""
    for name in ("captions", "captions_stream"):
        ours = folder / name.replace("captions", "captioner")
        shutil.copytree(SUPPORT / "models" / name, ours)
        config = (ours / "config.pbtxt").read_text().replace("captions", "captioner")
        sure = f'parameters [ {{ key: "threshold" value: {{ string_value: "{THRESHOLD}" }} }} ]\n'
        (ours / "config.pbtxt").write_text(config + sure)
        (ours / "1" / "model.py").write_text(CAPTIONER_MODEL)
    package = folder / "captioner_stream" / "1" / "package.json"
    package.write_text(package.read_text().replace("captions", "captioner"))
    return folder


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """The systems of the tests and the captioner with a made-up network, whose steps take a while."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plant(tmp_path_factory.mktemp("faults")).items():
            patch.setenv(name, value)
        patch.setenv("GOURMET_SYSTEMS", str(SUPPORT / "systems"))
        patch.setenv("ECHO_PAUSE_S", "0.1")
        patch.setenv("CAPTIONS_PAUSE_S", "0.02")
        captioner = slow_captioner(tmp_path_factory.mktemp("captioner"))
        yield from run_triton(captioner, SUPPORT / "models")


@pytest.fixture(scope="module")
def webs(start: StartWeb, triton: RunningTriton, made_up: RunningTriton) -> Webs:
    own = {"WEB_CONCURRENCY": "1", "MAX_UPLOAD_MB": "2"}
    shipped = start(triton.http_url, **own), triton
    toys = start(made_up.http_url, GOURMET_SYSTEMS=str(SUPPORT / "systems"), **own), made_up
    return {case.system: shipped if case.system == "translator" else toys for case in CASES}


@pytest.fixture(params=CASES, ids=lambda case: case.system)
def case(request: pytest.FixtureRequest) -> Case:
    case_of_system: Case = request.param
    return case_of_system


@pytest.fixture
def web(webs: Webs, case: Case) -> WebApp:
    return webs[case.system][0]


@pytest.fixture
def translator(webs: Webs) -> WebApp:
    return webs["translator"][0]


@pytest.fixture
def captioner(webs: Webs) -> WebApp:
    return webs["captioner"][0]


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
    reply = streaming(case).ask(web, case.inputs[0], **stream(case))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"
    *pieces, (name, done) = events(iter(reply.body.splitlines()))
    assert ({name for name, _ in pieces}, name) == ({"piece"}, "done")
    assert len(pieces) > 1
    assert "".join(piece["text"] for _, piece in pieces) == whole["text"] == done["text"]
    assert (done["tokens"], done["model"]["name"]) == (whole["tokens"], case.streaming_model)
    assert 0 < done["timings_ms"]["first_piece"] < done["timings_ms"]["triton"]
    assert done["request_id"] == reply.headers["x-request-id"]


def test_a_disconnected_client_stops_the_model_and_frees_its_place(
    webs: Webs, web: WebApp, case: Case
) -> None:
    triton = webs[case.system][1]
    before = "".join(triton.log).count(case.left)

    def stops() -> bool:
        """Asked again where a busy machine ended the answer before its client disconnected."""
        with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
            connection.request("POST", streaming(case).path, case.body(case.endless, **stream(case)), TYPE)
            response = connection.getresponse()
            assert response.readline()  # the answer has begun, and is not whole
            response.close()
        wait_until(lambda: at_work(web) == 0, 60, "the turn was not given back")
        return "".join(triton.log).count(case.left) > before

    wait_until(stops, 60, "the model went on", poll_s=0.2)


def test_a_request_past_its_deadline_ends_with_a_status_or_an_event(
    start: StartWeb, made_up: RunningTriton
) -> None:
    case, settings = BY_NAME["echo"], {"GOURMET_SYSTEMS": str(SUPPORT / "systems")}
    hasty = start(made_up.http_url, WEB_CONCURRENCY="1", GENERATE_DEADLINE_S="0.3", **settings)
    for more in ({"model": "echo_stream"}, stream(case)):
        reply = streaming(case).ask(hasty, case.endless, **more)
        if reply.status == 200:
            *_, (name, body) = events(iter(reply.body.splitlines()))
            assert ("stream" in more, name, body["error"]["code"]) == (True, "error", "triton_too_slow")
        else:
            assert (reply.status, reply.json["error"]["code"]) == (504, "triton_too_slow")


def test_a_text_system_is_ready_counted_and_documented(web: WebApp, case: Case) -> None:
    case.told(case.ask(web, case.inputs[0]))
    assert streaming(case).ask(web, case.inputs[0], **stream(case)).status == 200
    health = web.request("GET", f"/api/v1/health?system={case.system}").json
    assert (health["ready"], health["model"]["name"]) == (True, case.system)
    text = web.request("GET", "/metrics").body.decode()
    for name in ("generations_total", "tokens_total", "phase_seconds_count", "first_piece_seconds_count"):
        assert f"\n{case.system}_{name}{{" in text, name
    document = web.request("GET", "/api/v1/openapi.json").json
    answered = document["paths"][case.path.partition("?")[0]]["post"]["responses"]["200"]["content"]
    assert answered.keys() == {"application/json", "text/event-stream"}


@pytest.mark.parametrize(
    ("system", "body", "status", "words"),
    [
        ("translator", {"text": "\ud800"}, 400, "Invalid JSON"),
        ("translator", {"text": "Да.", "options": {"beams": 9}}, 400, "from 1 to 4"),
        ("translator", {"text": "Да.", "options": {"heat": 1}}, 400, "not an option"),
        ("translator", {"text": "Да.", "model": "digits"}, 404, "digits"),
        ("translator", {"text": "a" * 2_000_000}, 413, "too long"),
        ("captioner", {"images": ENCODED[:1], "options": {"beams": 4}, "stream": True}, 400, "not an option"),
        ("captions", {"picture": "bm9ib2R5"}, 400, "not a picture"),
        ("captions", {"picture": "§"}, 400, "not valid base64"),
        ("captions", {"picture": ENCODED[0], "text": "both"}, 400, "send either text or picture"),
        ("captions", {"text": "what is it?"}, 400, "captions answers a picture: send that, not a text"),
        ("captions", {"picture": ENCODED[0], "options": {"prompt": "a cup of tea"}}, 400, "not known: "),
        ("echo", {"picture": ENCODED[0]}, 400, "echo answers a text: send that, not a picture"),
        ("echo", {"text": ""}, 400, "text"),
        ("echo", {"txt": "a"}, 400, "txt"),
        ("echo", {"text": "a", "options": {"beam": 2}}, 400, "not an option"),
        ("echo", {"text": "a", "model": "nobody", "stream": True}, 404, "nobody"),
        # Larger than a picture may be, which a system of these tests answers.
        ("echo", {"text": "a" * 20_000_000}, 413, "too long"),
    ],
)
def test_an_invalid_request_is_refused_with_the_allowed_values(
    webs: Webs, system: str, body: Any, status: int, words: str
) -> None:
    case = BY_NAME[system]
    path = case.path.partition("?")[0] if "model" in body else case.path
    reply = webs[system][0].request("POST", path, json.dumps(body), Content_Type="application/json")
    assert (reply.status, words in reply.json["error"]["message"]) == (status, True), reply.json


def test_a_picture_may_be_a_data_url_and_options_are_numbers_and_texts(webs: Webs) -> None:
    case, web = BY_NAME["captions"], webs["captions"][0]
    address = f"data:image/png;base64,{ENCODED[0]}"
    assert case.told(case.ask(web, address))[0]["text"] == case.told(case.ask(web, ENCODED[0]))[0]["text"]
    options = {"prompt": "the round plate with", "max_tokens": 2}
    (short,) = case.told(case.ask(web, ENCODED[0], options=options))
    assert (short["text"].startswith("the round plate with "), short["tokens"]) == (True, 2)


# Translating


def test_any_model_answers_by_name_unless_it_is_not_for_the_web(
    translator: WebApp, triton: RunningTriton
) -> None:
    triton.load("translator_bls")
    case = BY_NAME["translator"]
    right = [answer["text"] for answer in case.told(case.ask(translator, *TEXTS[:2]))]
    streams = case.ask(translator, *TEXTS[:2], model=TRANSLATOR.streaming_model)
    assert [answer["text"] for answer in case.told(streams)] == right
    assert streams.json["model"]["name"] == TRANSLATOR.streaming_model
    refused = case.ask(translator, *TEXTS[:2], model="translator_bls")
    assert (refused.status, refused.json["error"]["code"]) == (404, "unknown_model")
    assert "translator_bls" not in refused.json["error"]["message"].partition("ready models: ")[2]


def test_a_text_with_little_russian_is_translated_with_a_warning(translator: WebApp) -> None:
    case = BY_NAME["translator"]
    english, russian = case.told(case.ask(translator, "Where is the library?", TEXTS[0]))
    assert "not look Russian" in english["warning"]
    assert "warning" not in russian


def test_hostile_texts_cost_no_other_client_an_answer(translator: WebApp) -> None:
    case, draw = BY_NAME["translator"], random.Random(5)
    texts = [hostile.text(draw) for _ in range(HOSTILE)]
    right = case.told(case.ask(translator, TEXTS[1]))

    def send(number: int) -> bool:
        if number % 10 == 0:
            return bool(case.told(case.ask(translator, TEXTS[1])) == right)
        more = {"stream": number % 3 == 0, "options": {"max_tokens": 20}}
        return case.ask(translator, texts[number], **more).status in (200, 400)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(send, range(HOSTILE)))


def test_a_disconnected_client_stops_whole_answers_over_grpc(start: StartWeb, triton: RunningTriton) -> None:
    web = start(triton.http_url, WEB_CONCURRENCY="1", TRITON_GRPC_URL=triton.grpc_url)
    case, before = BY_NAME["translator"], len(triton.log)

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


def test_captions_of_a_form_have_file_names_and_sure(captioner: WebApp) -> None:
    results = described(captioner, *PHOTOS).json["results"]
    assert [result["filename"] for result in results] == [f"{number}.jpg" for number in range(len(PHOTOS))]
    for result in results:
        assert result["sure"] is (result["score"] >= THRESHOLD)
        assert result["tokens"] == len(result["text"].split()) - 3  # the prompt is not counted
        assert "decode" in result["timings_ms"]


def test_options_are_read_from_the_query_the_form_and_json(captioner: WebApp) -> None:
    body, headers = form(PHOTOS[0])
    boundary = headers["Content-Type"].partition("=")[2]
    field = f'--{boundary}\r\nContent-Disposition: form-data; name="max_tokens"\r\n\r\n4\r\n'.encode()
    encoded = json.dumps({"images": ENCODED[:1], "options": {"max_tokens": 4}})
    path = "/api/v1/caption"
    replies = [
        described(captioner, PHOTOS[0], query="?max_tokens=4"),
        captioner.request("POST", path, field + body, **headers),
        captioner.request("POST", path, encoded, Content_Type="application/json"),
        captioner.request("POST", f"{path}?max_tokens=4", PHOTOS[0], Content_Type="image/png"),
    ]
    (text,) = {reply.json["results"][0]["text"] for reply in replies}
    assert {reply.json["results"][0]["tokens"] for reply in replies} == {4}
    query = "?prompt=the+red+bowl&max_tokens=3"
    (prompted,) = described(captioner, PHOTOS[0], query=query).json["results"]
    assert prompted["text"].startswith("the red bowl ")
    assert prompted["text"] != text


def test_a_beam_search_returns_alternatives(captioner: WebApp) -> None:
    (result,) = described(captioner, PHOTOS[1], query="?beams=4&max_tokens=8").json["results"]
    wordings = [result["text"], *result["alternatives"]]
    assert len(set(wordings)) == len(wordings) == 4
    assert "alternatives" not in described(captioner, PHOTOS[1]).json["results"][0]


@pytest.mark.parametrize(
    ("photo", "status", "code"),
    [
        (b"no picture", 400, "not_a_picture"),
        (b"<svg/>", 415, "unsupported_format"),
        (PHOTOS[0] + b"x" * 2_000_001, 413, "upload_too_large"),
        (hostile.encoded(hostile.scene(), "JPEG")[:-200], 400, "broken_picture"),
        pytest.param(gif("never returns"), 504, "too_slow", marks=pytest.mark.slow),
    ],
    ids=["text", "svg", "large", "cut off", "a decoder that never returns"],
)
def test_an_unusable_photo_fails_alone(captioner: WebApp, photo: bytes, status: int, code: str) -> None:
    reply = described(captioner, photo)
    assert (reply.status, reply.json["results"][0]["error"]["code"]) == (status, code)
    streamed = described(captioner, photo, query="?stream=1")
    if streamed.status == 200:  # decoding it took so long that its answer had begun
        (_, error) = list(events(iter(streamed.body.splitlines())))[-1]
        assert error["error"]["code"] == code
    else:
        assert (streamed.status, streamed.json["error"]["code"]) == (status, code)
    results = described(captioner, photo, PHOTOS[0]).json["results"]
    assert [results[0]["error"]["code"], bool(results[1]["text"])] == [code, True]
