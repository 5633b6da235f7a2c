"""The models that generate on the real server: each row has the answer that it has alone, by every way.

What holds for every system stands first: a new system is one case more.
"""

from __future__ import annotations

import base64
import csv
import http.client
import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest
import tritonclient.http as triton_http
from click.testing import CliRunner, Result
from support.hostile_rows import stubs
from support.planted import gif, plant
from support.triton import MODELS, RunningTriton, run_triton, some_models
from tritonclient.utils import np_to_triton_dtype

from gourmet.commands.caption import caption
from gourmet.contracts import GeneratedText
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import wait_for
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.serving.connect import ask_sample, connect
from gourmet.serving.waiting import wait_until
from gourmet.systems.captioner.contract import BEAMS, MAX_TOKENS, PROMPT
from gourmet.systems.captioner.contract import SYSTEM as CAPTIONER
from gourmet.systems.captioner.serving import SERVING as CAPTIONER_SERVING
from gourmet.systems.translator.contract import MOST_CHARACTERS
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR
from gourmet.systems.translator.serving import SERVING as TRANSLATOR_SERVING
from gourmet.systems.translator.tokenizer import Tokenizer

Client = triton_http.InferenceServerClient
Refusal = triton_http.InferenceServerException
TEXTS: Final = TRANSLATOR.examples(24, seed=3)
PHOTOS: Final = [*CAPTIONER.examples(12, seed=3), CAPTIONER.sample()]
# One sentence without a pause to cut it at, of about as many pieces as a sentence may have.
# Of different things, since of the same ones again and again the network makes a few words.
LONG: Final = (
    "Утром мой брат пьёт чай и читает книгу, днём моя сестра идёт в школу и пишет письмо, вечером наш отец "
    "готовит ужин и смотрит телевизор, а ночью моя мама поёт песню и закрывает окно, потому что на улице "
    "идёт снег и дует холодный ветер."
)


@dataclass(frozen=True)
class Case:
    """A system, what its models take and give, and what they cannot answer."""

    system: str
    serving: Any
    input: str
    output: str
    rows: list[bytes]
    endless: bytes
    out_of_time: str
    sample: str  # how the answer to it begins
    libraries: str  # what its processes open; they open nothing of torch and of transformers


CASES: Final = [
    Case(
        *("translator", TRANSLATOR_SERVING, "TEXT", "TRANSLATION", TEXTS),
        *(
            (LONG * 8).encode()[: 2 * MOST_CHARACTERS - 400],
            "not translated in time",
            "«Я люблю чай.» → ",
            "sentencepiece",
        ),
    ),
    Case(
        *("captioner", CAPTIONER_SERVING, "IMAGE", "CAPTION", PHOTOS),
        *(gif("sleeps"), "not described in time", "the sample shows: ", "onnxruntime"),
    ),
]


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """The captioner's models, with decoders that never return from one picture."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plant(tmp_path_factory.mktemp("fault")).items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("captioners") / "models"
        parts = "captioner_vision", "captioner_decoder"
        some_models(folder, "captioner", "captioner_stream", *parts)
        yield from run_triton(folder)


@pytest.fixture(params=CASES, ids=lambda case: case.system)
def case(request: pytest.FixtureRequest) -> Case:
    case_of_system: Case = request.param
    return case_of_system


@pytest.fixture
def server(request: pytest.FixtureRequest, case: Case) -> RunningTriton:
    name = "captioner" if case.system == "captioner" else "triton"
    running: RunningTriton = request.getfixturevalue(name)
    return running


@pytest.fixture
def client(server: RunningTriton) -> Iterator[Client]:
    with Client(server.http_url, concurrency=16, network_timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def answers() -> dict[str, list[GeneratedText]]:
    return {}


@pytest.fixture
def alone(answers: dict[str, list[GeneratedText]], case: Case) -> list[GeneratedText]:
    """Return the answers of the loop in this process, each row computed alone."""
    if case.system not in answers:
        network = case.serving.open(package.read(MODELS / case.system / "1" / package.FILE), 1)
        start, end = network.vocabulary.start, network.vocabulary.end
        room = GenerationRoom(network.engine, start=start, end=end, max_rows=16)
        requests = network.requested({case.input: case.rows})
        answers[case.system] = [wait_for([parts], network, room, within_s=60)[0] for parts in requests]
        room.close()
    return answers[case.system]


def given(case: Case, rows: Sequence[bytes], **options: int | str) -> list[triton_http.InferInput]:
    inputs = [triton_http.InferInput(case.input, [len(rows), 1], "BYTES")]
    inputs[0].set_data_from_numpy(np.array(rows, np.object_)[:, None])
    for name, value in options.items():
        kind, value = ("BYTES", value.encode()) if isinstance(value, str) else ("INT32", value)
        inputs.append(triton_http.InferInput(name, [len(rows), 1], kind))
        filled = np.full((len(rows), 1), value, np.object_ if kind == "BYTES" else np.int32)
        inputs[-1].set_data_from_numpy(filled)
    return inputs


def read(case: Case, result: triton_http.InferResult) -> list[GeneratedText]:
    others = result.as_numpy("ALTERNATIVES")
    columns = [result.as_numpy(name).ravel().tolist() for name in (case.output, "TOKENS", "SCORE")]
    wordings = others.ravel().tolist() if others is not None else [b""] * len(columns[0])
    return [
        GeneratedText(text.decode(), tokens, score, more.decode().splitlines())
        for text, tokens, score, more in zip(*columns, wordings, strict=True)
    ]


def streamed(server: RunningTriton, case: Case, row: bytes, **more: Any) -> Iterator[dict[str, Any]]:
    """Each event of Triton's own generate_stream, as curl would show it."""
    text = base64.b64encode(row).decode() if case.input == "IMAGE" else row.decode()
    with closing(http.client.HTTPConnection(server.http_url, timeout=120)) as connection:
        path = f"/v2/models/{case.system}_stream/generate_stream"
        connection.request("POST", path, json.dumps({case.input: text, **more}))
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def same(texts: Sequence[GeneratedText], expected: Sequence[GeneratedText]) -> bool:
    scores = [[answer.score for answer in side] for side in (texts, expected)]
    words = [[(answer.text, answer.tokens) for answer in side] for side in (texts, expected)]
    return words[0] == words[1] and np.allclose(*scores, atol=1e-4)


# Every system


def test_batched_rows_have_the_words_of_the_loop_alone(
    client: Client, case: Case, alone: list[GeneratedText]
) -> None:
    random = np.random.default_rng(4)
    cuts = [random.integers(0, len(case.rows), random.integers(1, 9)) for _ in range(16)]
    waiting = [
        client.async_infer(case.system, given(case, [case.rows[row] for row in rows])) for rows in cuts
    ]
    for rows, request in zip(cuts, waiting, strict=True):
        assert same(read(case, request.get_result()), [alone[row] for row in rows])
    assert len({answer.text for answer in alone}) > 1


@pytest.mark.smoke
def test_every_model_answers_the_sample(server: RunningTriton, case: Case) -> None:
    for model in (case.system, f"{case.system}_stream"):
        assert case.sample in ask_sample(server.http_url, case.system, model)


def test_pieces_join_to_the_whole_answer_also_in_concurrent_streams(
    server: RunningTriton, case: Case, alone: list[GeneratedText]
) -> None:
    def told(row: bytes) -> list[dict[str, Any]]:
        return list(streamed(server, case, row))

    with ThreadPoolExecutor(8) as clients:
        one_by_one, many_at_once = [*map(told, case.rows)], [*clients.map(told, case.rows * 2)]
    for pieces, whole in zip([*one_by_one, *many_at_once], alone * 3, strict=True):
        assert "".join(piece[case.output] for piece in pieces) == whole.text
        assert pieces[-1]["TOKENS"] == whole.tokens
        if case.system == "translator":
            assert ["SENTENCES" in piece for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            ((begin, end, score),) = json.loads(pieces[-1]["SENTENCES"])
            assert (begin, end, score) == (0, len(whole.text), pytest.approx(pieces[-1]["SCORE"], abs=1e-4))
    # Pieces that wait to be sent go together, of which a busy machine has some.
    assert max(map(len, one_by_one)) > 1


@pytest.mark.parametrize(
    ("case", "row", "why"),
    [
        (CASES[0], b"", "the text is empty"),
        (CASES[0], b" \n\t ", "the text is empty"),
        (CASES[0], "а".encode() * (MOST_CHARACTERS + 1), r"has 2,001 characters; at most 2,000"),
        (CASES[0], b"\xff\xfe", "not UTF-8 from byte 0"),
        (CASES[1], b"", r"IMAGE row 1 of 2: the file is empty.* \[empty\]"),
        (CASES[1], b"%PDF-1.7", r"IMAGE row 1 of 2: this is a PDF document.* \[unsupported_format\]"),
        (CASES[1], PHOTOS[0][:900], r"IMAGE row 1 of 2: this JPEG cannot be decoded.* \[broken_picture\]"),
        (CASES[1], gif("crashes"), r"IMAGE row 1 of 2: .*its decoder crashed.*\[broken_picture\]"),
    ],
    ids=lambda value: getattr(value, "system", None),
)
def test_a_row_that_cannot_be_answered_fails_its_own_request_with_a_reason(
    server: RunningTriton, client: Client, case: Case, alone: list[GeneratedText], row: bytes, why: str
) -> None:
    for model in (case.system, *(["translator_bls"] if case.system == "translator" else [])):
        beside = client.async_infer(model, given(case, [case.rows[2]]))
        with pytest.raises(Refusal, match=why) as refused:
            client.infer(model, given(case, [case.rows[0], row]))
        assert refused.value.status() == "400" or model != "captioner"
        assert same(read(case, beside.get_result()), [alone[2]])
    if case.input == "TEXT" and row.startswith("а".encode()):
        (reply,) = streamed(server, case, row)
        assert "at most 2,000" in reply["error"]


def test_a_request_past_its_deadline_is_refused(client: Client, case: Case) -> None:
    for options in ({}, {BEAMS: 4}):
        with pytest.raises(Refusal, match=case.out_of_time):
            client.infer(case.system, given(case, [case.endless], **options), timeout=1000)


def test_the_processes_that_serve_have_neither_torch_nor_transformers(
    server: RunningTriton, case: Case
) -> None:
    # Other tests' servers may start the same models at this moment.
    serving = [
        process
        for process in map(psutil.Process, stubs(server.http_url))
        if re.search(rf"{server.repository}/{case.system}(_stream|_bls)?/", " ".join(process.cmdline()))
    ]
    assert len(serving) >= 2  # one each for the whole and the pieces
    for process in serving:
        opened = {Path(mapping.path).name for mapping in process.memory_maps()}
        assert any(case.libraries in name for name in opened)
        # transformers has a library of its own for its tokenizers.
        assert not [name for name in opened if name.startswith(("libtorch", "libc10", "tokenizers"))]


# Translating

TRANSLATING, DESCRIBING = CASES
in_translating = pytest.mark.parametrize("case", [TRANSLATING], ids=["translator"])
in_describing = pytest.mark.parametrize("case", [DESCRIBING], ids=["captioner"])


def translated(client: Client, *texts: str, model: str = "translator", **options: int) -> list[GeneratedText]:
    rows = [text.encode() for text in texts]
    return read(TRANSLATING, client.infer(model, given(TRANSLATING, rows, **options)))


@in_translating
def test_business_logic_scripting_finds_the_same_words(client: Client, alone: list[GeneratedText]) -> None:
    rows = [row.decode() for row in TEXTS[:6]]
    assert same(translated(client, *rows, model="translator_bls"), alone[:6])


@in_translating
def test_triton_s_own_generate_answers_where_there_is_one_piece(
    server: RunningTriton, alone: list[GeneratedText]
) -> None:
    with closing(http.client.HTTPConnection(server.http_url, timeout=120)) as connection:
        connection.request("POST", "/v2/models/translator/generate", json.dumps({"TEXT": TEXTS[0].decode()}))
        reply = json.loads(connection.getresponse().read())
        assert (reply["TRANSLATION"], reply["TOKENS"]) == (alone[0].text, alone[0].tokens)
        # Of a model that answers in pieces only generate_stream gives more than the first.
        body = json.dumps({"TEXT": "Да.", "MAX_TOKENS": 1})
        connection.request("POST", "/v2/models/translator_stream/generate", body)
        assert json.loads(connection.getresponse().read())["model_name"] == "translator_stream"


@in_translating
def test_translated_sentences_keep_the_whitespace_between_them(
    client: Client, alone: list[GeneratedText]
) -> None:
    text = f"  {TEXTS[0].decode()}\n\n{TEXTS[1].decode()} "
    result = client.infer("translator", given(TRANSLATING, [text.encode()]))
    (answer,) = read(TRANSLATING, result)
    assert answer.text == f"  {alone[0].text}\n\n{alone[1].text} "
    sentences = json.loads(result.as_numpy("SENTENCES").item())
    assert [answer.text[begin:end] for begin, end, _ in sentences] == [alone[0].text, alone[1].text]
    assert [score for _, _, score in sentences] == pytest.approx([alone[0].score, alone[1].score], abs=1e-3)
    assert answer.tokens == (alone[0].tokens or 0) + (alone[1].tokens or 0)


@in_translating
def test_limits_and_beams_of_a_translation_are_kept(client: Client) -> None:
    assert translated(client, LONG, MAX_TOKENS=3)[0].tokens == 3
    (greedy,), (searched,) = (translated(client, TEXTS[0].decode(), BEAMS=beams) for beams in (1, 4))
    assert (searched.score or 0) >= (greedy.score or 0) - 1e-3
    with pytest.raises(Refusal, match="BEAMS is 9; it has to be from 1 to 4"):
        translated(client, "Да.", BEAMS=9)


@in_translating
def test_unusual_texts_and_the_longest_one_are_answered(client: Client) -> None:
    odd = ["What is not Russian at all.", "😀 → 12", "א" * 50, "\u0301\u202e\ufeffда", "!"]
    assert all((answer.score or 0) <= 0 for answer in translated(client, *odd))
    (longest,) = translated(client, ("Я люблю чай, а он любит кофе. " * 100)[:MOST_CHARACTERS])
    assert (longest.tokens or 0) > 100


# For the loop in the client, as the first users of this name run it.
def padded(words: Sequence[int]) -> np.ndarray:
    return np.array([[*words, *[1] * (50 - len(words))]], np.int32)


def steps(client: Client, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    # tritonclient returns read-only arrays.
    return infer(client, "onnx-model", source=source, target=target).as_numpy("output").copy()


def infer(client: Client, model: str, **inputs: np.ndarray) -> triton_http.InferResult:
    tensors = []
    for name, values in inputs.items():
        tensors.append(triton_http.InferInput(name, values.shape, np_to_triton_dtype(values.dtype)))
        tensors[-1].set_data_from_numpy(values)
    return client.infer(model, tensors)


@in_translating
def test_a_client_side_loop_over_the_step_model_gives_the_same_words(
    client: Client, alone: list[GeneratedText]
) -> None:
    tokenizer = Tokenizer(package.read(MODELS / "translator" / "1" / package.FILE))
    shortest = min(range(len(TEXTS)), key=lambda row: alone[row].tokens or 0)
    source, tokens = padded(tokenizer.encode(TEXTS[shortest].decode())), list[int]()
    for length in range(min((alone[shortest].tokens or 0) + 1, 49)):
        logits = steps(client, source, padded([tokenizer.pad, *tokens]))[0, length]
        logits[tokenizer.pad] = -np.inf
        tokens.append(int(logits.argmax()))
    assert tokenizer.decode(tokens) == alone[shortest].text


@in_translating
def test_whole_steps_take_four_rows_and_no_more(client: Client) -> None:
    rows = np.concatenate([padded([5 + row, 9, 0]) for row in range(4)])
    target = np.concatenate([padded([1])] * 4)
    together = steps(client, rows, target)
    for row in range(4):
        own = steps(client, rows[row : row + 1], target[:1])
        np.testing.assert_allclose(together[row : row + 1], own, atol=1e-3)
    with pytest.raises(Refusal, match="4"):
        steps(client, np.concatenate([rows, rows[:1]]), np.concatenate([target, target[:1]]))


@in_translating
def test_rows_beyond_the_queue_are_refused_unless_one_request_holds_them(client: Client) -> None:
    def failure(request: Any) -> str:
        try:
            request.get_result()
        except Refusal as exc:
            return str(exc)
        return ""

    rows = [("Да. " * 80).encode()] * 16  # two such calls are more than may wait
    waiting = [client.async_infer("translator", given(TRANSLATING, rows)) for _ in range(12)]
    refused = [why for why in map(failure, waiting) if why]
    assert 0 < len(refused) < len(waiting)
    assert all("may: send the request again later" in why for why in refused)
    assert len({answer.text for answer in translated(client, *["Да. " * 20] * 32)}) == 1
    *others, last = translated(client, *["Да."] * 20, "Нет.", BEAMS=2)
    assert (len({answer.text for answer in others}), last.text) == (1, "No.")


@pytest.mark.slow
@in_translating
def test_triton_s_metrics_have_the_queue_and_the_tokens_of_the_room(
    client: Client, server: RunningTriton
) -> None:
    """Triton itself counts a request as answered once it is handed over."""

    def figures() -> Counter[str]:
        with urllib.request.urlopen(server.options.metrics_url, timeout=10) as reply:
            text = reply.read().decode()
        labels = r'{model="translator",process="\d+",version="1"}'
        sums = Counter[str]()
        for name, value in re.findall(rf"^generation_(\w+){labels} (\S+)$", text, re.M):  # of each process
            sums[name] += float(value)  # type: ignore[assignment]
        return sums

    wait_until(lambda: len(figures()) == 5, 60, "the room's figures are not there")
    time.sleep(2)  # Triton reports the tests' earlier translations too, within a second
    before, highest = figures(), dict.fromkeys(("waiting", "at_work"), 0.0)
    rows = [f"{LONG} ".encode() * 7] * 16
    pending = [client.async_infer("translator", given(TRANSLATING, rows)) for _ in range(3)]

    def seen() -> bool:
        now = figures()
        highest.update({name: max(highest_before, now[name]) for name, highest_before in highest.items()})
        return min(highest.values()) > 0

    wait_until(seen, 60, "nothing was seen to wait and to be at work")
    answered = [read(TRANSLATING, call.get_result()) for call in pending]
    tokens = sum(answer.tokens or 0 for texts in answered for answer in texts)
    sentences = 3 * 16 * 7
    # An answer's end is a token of the network's too, and none of the answer's.
    counted = {"waiting": 0, "at_work": 0, "begun_total": sentences, "tokens_total": tokens + sentences}

    def grew() -> dict[str, float]:
        return {name: value - before[name] for name, value in figures().items()}

    wait_until(lambda: grew().items() >= counted.items(), 60, f"{counted} is not told")
    assert 0 < grew()["first_token_seconds_total"] / sentences < 60


# Describing photos


@in_describing
def test_a_prompt_begins_the_caption_and_limits_and_beams_are_kept(
    client: Client, server: RunningTriton, alone: list[GeneratedText]
) -> None:
    def described(**options: int | str) -> GeneratedText:
        return read(DESCRIBING, client.infer("captioner", given(DESCRIBING, PHOTOS[:1], **options)))[0]

    assert described(PROMPT="a photograph of").text.startswith("a photograph of ")
    (piece, *_) = streamed(server, DESCRIBING, PHOTOS[0], PROMPT="a photograph of")
    assert piece["CAPTION"].startswith("a photograph of")
    assert described(MAX_TOKENS=3).tokens == 3
    searched = described(BEAMS=3)
    assert len({searched.text, *searched.others}) == 3
    assert not alone[0].others
    for options, why in (
        ({BEAMS: 9}, "BEAMS is 9; it has to be from 1 to 4"),
        ({MAX_TOKENS: 0}, "MAX_TOKENS is 0; it has to be from 1 to 40"),
        ({PROMPT: "a" * 101}, "PROMPT has 101 characters; a caption begins with at most 100"),
        ({PROMPT: "a " * 20}, "PROMPT has 20 pieces of words; a caption begins with at most 16"),
    ):
        with pytest.raises(Refusal, match=why):
            described(**options)


@pytest.mark.slow
@in_describing
def test_slow_pictures_do_not_delay_other_requests(
    client: Client, case: Case, alone: list[GeneratedText]
) -> None:
    slow = [client.async_infer("captioner", given(case, [gif("never returns")])) for _ in range(3)]
    time.sleep(0.2)
    assert same(read(case, client.infer("captioner", given(case, PHOTOS[:4]))), alone[:4])
    for request in slow:
        with pytest.raises(Refusal, match="failed to obtain"):
            request.get_result(block=False)
    for request in slow:
        with pytest.raises(Refusal, match=r"took too long.* \[too_slow\]"):
            request.get_result()


@in_describing
def test_the_separate_graphs_give_the_same_first_word(client: Client, alone: list[GeneratedText]) -> None:
    network = CAPTIONER_SERVING.open(package.read(MODELS / "captioner" / "1" / package.FILE), 1)
    ((row,),) = network.requested({"IMAGE": PHOTOS[:1]})
    memory = infer(client, "captioner_vision", pixels=row.source[np.newaxis]).as_numpy("memory")
    _, layers, pair, heads, places, size = memory.shape
    result = infer(
        client,
        "captioner_decoder",
        token=np.array([[network.vocabulary.start]]),
        length=np.zeros((1, 1), np.int64),
        cache=np.zeros((1, layers, pair, heads, 1, size), np.float32),
        memory=memory,
        mask=np.ones((1, places), np.int32),
    )
    first = network.vocabulary.decode(result.as_numpy("tokens")[0, :1])
    assert first
    assert alone[0].text.startswith(first)


@in_describing
def test_describe_prints_captions_whole_streamed_and_as_a_table(
    server: RunningTriton, alone: list[GeneratedText], tmp_path: Path
) -> None:
    for number, photo in enumerate(PHOTOS[:3]):
        (tmp_path / f"{number}.jpg").write_bytes(photo)
    folder, first = str(tmp_path), str(tmp_path / "0.jpg")

    def said(*options: str) -> Result:
        return CliRunner().invoke(caption, [*options, "--url", server.http_url])

    with connect(server.http_url) as triton:
        info = triton.describe("captioner")
    sure = [info.is_sure(text) for text in alone[:3]]
    doubts = ["  (not sure)" if is_sure is False else "" for is_sure in sure]
    lines = said(folder).stdout.splitlines()
    answers = [generated.text + doubt for generated, doubt in zip(alone[:3], doubts, strict=True)]
    assert lines == [f"{tmp_path}/{n}.jpg: {answer}" for n, answer in enumerate(answers)]
    assert said(first, "--stream").stdout.startswith(f"{first}: {alone[0].text}")
    assert "a photograph of" in said(first, "--prompt", "a photograph of").stdout
    (tmp_path / "3.png").write_bytes(b"%PDF-1.7")
    table = said(folder, "--csv")
    rows = list(csv.DictReader(table.stdout.splitlines()))
    assert [row["caption"] for row in rows] == [generated.text for generated in alone[:3]]
    assert [float(row["score"]) for row in rows] == pytest.approx(
        [generated.score for generated in alone[:3]], abs=1e-3
    )
    assert [row["sure"] for row in rows] == [
        {True: "true", False: "false", None: ""}[certain] for certain in sure
    ]
    assert "3.png: this is a PDF document" in table.stderr
    assert str(table.exception) == "1 of 4 photos have no caption"
