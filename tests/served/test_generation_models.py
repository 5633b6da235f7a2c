"""Every served system that generates text, on a real Triton: a new system is one case more."""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.http as triton_http
from click.testing import Result
from support.cli import gourmet
from support.eventually import eventually
from support.triton import MODELS, RunningTriton
from tritonclient.utils import np_to_triton_dtype

from gourmet.contracts import GeneratedText
from gourmet.evaluation.text_comparison import whole_answers
from gourmet.generation import package
from gourmet.generation.answers import ServedNetwork
from gourmet.generation.contract import BEAMS, MAX_TOKENS
from gourmet.generation.loop import Row
from gourmet.stack.connect import ask_sample, connect
from gourmet.systems.captioner.contract import PROMPT
from gourmet.systems.captioner.contract import SYSTEM as CAPTIONER
from gourmet.systems.captioner.serving import SERVING as CAPTIONER_SERVING
from gourmet.systems.translator.contract import MAX_CHARACTERS
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR
from gourmet.systems.translator.serving import SERVING as TRANSLATOR_SERVING
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import TritonError

Client = triton_http.InferenceServerClient
Refusal = triton_http.InferenceServerException
PHOTOS: Final = [*CAPTIONER.examples(12, seed=3), CAPTIONER.sample()]
CLIENTS: Final = 24


@dataclass(frozen=True)
class Case:
    """A system, what its models take and give, and what they refuse."""

    system: str
    serving: Any
    input: str
    output: str
    rows: list[bytes]
    expensive: bytes  # much work
    out_of_time: str
    sample: str  # how the answer to it begins
    refused_rows: dict[bytes, str]
    refused_options: list[tuple[dict[str, int | str], str]]

    def __str__(self) -> str:
        return self.system


CASES: Final = [
    Case(
        "translator",
        TRANSLATOR_SERVING,
        "TEXT",
        "TRANSLATION",
        list(TRANSLATOR.examples(24, seed=3)),
        ("Мой брат пьёт чай дома. " * 80).encode(),
        "not translated in time",
        "«Я люблю чай.» → ",
        {
            b" \n\t ": "the text is empty",
            "а".encode() * (MAX_CHARACTERS + 1): r"has 2,001 characters; at most 2,000",
            b"\xff\xfe": "not UTF-8 from byte 0",
        },
        [({BEAMS: 9}, "BEAMS is 9; it has to be from 1 to 4")],
    ),
    Case(
        "captioner",
        CAPTIONER_SERVING,
        "IMAGE",
        "CAPTION",
        PHOTOS,
        PHOTOS[0],
        "not described in time",
        "the sample shows: ",
        {
            b"": r"IMAGE row 1 of 2: the file is empty.* \[empty\]",
            b"%PDF-1.7": r"IMAGE row 1 of 2: this is a PDF document.* \[unsupported_format\]",
            PHOTOS[0][:900]: r"IMAGE row 1 of 2: this JPEG cannot be decoded.* \[broken_picture\]",
        },
        [
            ({MAX_TOKENS: 0}, "MAX_TOKENS is 0; it has to be from 1 to 40"),
            ({PROMPT: "a" * 101}, "PROMPT has 101 characters; a caption begins with at most 100"),
            ({PROMPT: "a " * 20}, "PROMPT has 20 pieces of words; a caption begins with at most 16"),
        ],
    ),
]
TRANSLATING, DESCRIBING = CASES


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    case_of_system: Case = request.param
    return case_of_system


@pytest.fixture
def client(triton: RunningTriton) -> Iterator[Client]:
    with Client(triton.http_url, concurrency=16, network_timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def network(case: Case) -> ServedNetwork:
    """The network of the served package, in this process."""
    opened: ServedNetwork = case.serving.open(
        package.read_package(MODELS / case.system / "1" / package.FILE), 1
    )
    return opened


@pytest.fixture(scope="module")
def alone(case: Case, network: ServedNetwork) -> list[GeneratedText]:
    """The answers of the loop in this process, each row computed alone."""
    return whole_answers(network, network.requested({case.input: case.rows}), 1, lambda *_: None)


def inputs_of(case: Case, rows: Sequence[bytes], **options: int | str) -> list[triton_http.InferInput]:
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


def answered(client: Client, case: Case, *rows: bytes, **options: int | str) -> list[GeneratedText]:
    return read(case, client.infer(case.system, inputs_of(case, rows, **options)))


def streamed(triton: RunningTriton, case: Case, row: bytes, **more: Any) -> list[dict[str, Any]]:
    """Return each event of Triton's own generate_stream, as curl would show it."""
    text = base64.b64encode(row).decode() if case.input == "IMAGE" else row.decode()
    with closing(http.client.HTTPConnection(triton.http_url, timeout=120)) as connection:
        path = f"/v2/models/{case.system}_stream/generate_stream"
        connection.request("POST", path, json.dumps({case.input: text, **more}))
        lines = list(connection.getresponse())
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


def same(texts: Sequence[GeneratedText], expected: Sequence[GeneratedText]) -> bool:
    scores = [[answer.score for answer in side] for side in (texts, expected)]
    words = [[(answer.text, answer.tokens) for answer in side] for side in (texts, expected)]
    return words[0] == words[1] and np.allclose(*scores, atol=1e-4)


# Every system


def test_batched_rows_have_the_words_of_the_loop_alone(
    client: Client, triton: RunningTriton, case: Case, alone: list[GeneratedText]
) -> None:
    random = np.random.default_rng(4)
    cuts = [random.integers(0, len(case.rows), random.integers(1, 9)) for _ in range(16)]
    # The steps of a model with business logic scripting are requests: two of its own are enough.
    for model, count in ((case.system, 16), (f"{case.system}_bls", 2)):
        if not (MODELS / model).exists():
            continue
        triton.load(model)
        waiting = [
            (rows, client.async_infer(model, inputs_of(case, [case.rows[row] for row in rows])))
            for rows in cuts[:count]
        ]
        for rows, request in waiting:
            assert same(read(case, request.get_result()), [alone[row] for row in rows])
    assert len({answer.text for answer in alone}) > 1


@pytest.mark.smoke
def test_every_model_answers_the_sample(triton: RunningTriton, case: Case) -> None:
    for model in (case.system, f"{case.system}_stream"):
        assert case.sample in ask_sample(triton.http_url, case.system, model)


def test_pieces_join_to_the_whole_answer_in_concurrent_streams(
    triton: RunningTriton, case: Case, alone: list[GeneratedText]
) -> None:
    with ThreadPoolExecutor(8) as clients:
        streams = list(clients.map(lambda row: streamed(triton, case, row), case.rows))
    for pieces, whole in zip(streams, alone, strict=True):
        assert "".join(piece[case.output] for piece in pieces) == whole.text
        assert pieces[-1]["TOKENS"] == whole.tokens
        if case is TRANSLATING:
            assert ["SENTENCES" in piece for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert max(map(len, streams)) > 1


def test_a_row_that_cannot_be_answered_fails_its_own_request_with_a_reason(
    triton: RunningTriton, client: Client, case: Case, alone: list[GeneratedText]
) -> None:
    for row, why in case.refused_rows.items():
        beside = client.async_infer(case.system, inputs_of(case, [case.rows[2]]))
        with pytest.raises(Refusal, match=why) as refused:
            answered(client, case, case.rows[0], row)
        assert refused.value.status() == "400"
        assert same(read(case, beside.get_result()), [alone[2]])
        with suppress(UnicodeDecodeError):  # JSON has no such text
            (reply,) = streamed(triton, case, row)
            assert re.search(why.replace("1 of 2", "0 of 1"), reply["error"])


@pytest.mark.promise("SECURITY 8")
def test_limits_and_beams_are_kept(client: Client, case: Case, alone: list[GeneratedText]) -> None:
    row = case.rows[0]
    (short,), (searched,) = (
        answered(client, case, row, **option) for option in ({MAX_TOKENS: 2}, {BEAMS: 4})
    )
    assert short.tokens == 2
    assert (searched.score or 0) >= (alone[0].score or 0) - 1e-3
    if case is DESCRIBING:
        assert len({searched.text, *searched.others}) == 4
    for options, why in case.refused_options:
        with pytest.raises(Refusal, match=why):
            answered(client, case, row, **options)


def test_a_request_past_its_deadline_is_refused(client: Client, case: Case) -> None:
    for options in ({}, {BEAMS: 4}):
        with pytest.raises(Refusal, match=case.out_of_time):
            client.infer(case.system, inputs_of(case, [case.expensive], **options), timeout=1000)


@pytest.fixture
def figures(triton: RunningTriton) -> Callable[[str], Counter[str]]:
    """Read the figures of a model's room from Triton's metrics. Each process sends its own once a second."""

    def read_figures(model: str) -> Counter[str]:
        with urllib.request.urlopen(triton.options.metrics_url, timeout=60) as reply:
            text = reply.read().decode()
        sums = Counter[str]()
        for name, value in re.findall(rf'^generation_(\w+){{model="{model}",[^}}]*}} (\S+)$', text, re.M):
            sums[name] += float(value)  # type: ignore[assignment]
        return sums

    return read_figures


def test_triton_s_metrics_have_the_rows_and_tokens_of_the_room(
    client: Client, case: Case, alone: list[GeneratedText], figures: Callable[[str], Counter[str]]
) -> None:
    before = figures(case.system)
    answers = answered(client, case, *case.rows)
    assert same(answers, alone)
    # The end of an answer is a token too.
    counted = {
        "begun_total": len(answers),
        "tokens_total": sum((answer.tokens or 0) + 1 for answer in answers),
    }

    def grew() -> bool:
        now = figures(case.system)
        return all(now[name] - before[name] >= count for name, count in counted.items())

    eventually(grew)
    assert figures(case.system).keys() == {"waiting", "at_work", "first_token_seconds_total", *counted}


def test_rows_are_not_begun_after_their_deadline(
    triton: RunningTriton, case: Case, network: ServedNetwork, figures: Callable[[str], Counter[str]]
) -> None:
    (parts,) = network.requested({case.input: [case.expensive]})
    sentences = sum(isinstance(part, Row) for part in parts)
    rows = max(1, 16 // sentences)
    before = figures(case.system)["begun_total"]

    def give_up(_: int) -> None:
        """Ask as this project's own clients do: Triton gets the deadline, and the connection is closed."""
        inputs = {case.input: np.full((rows, 1), case.expensive, np.object_)}
        with connect(triton.http_url) as ours, suppress(TritonError):
            ours.generate(ours.describe(case.system), inputs, Deadline(0.05))

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(give_up, range(CLIENTS)))
    ask_sample(triton.http_url, case.system, case.system)

    def is_idle() -> bool:
        now = figures(case.system)  # a process sends what waits before what it has begun
        return now["begun_total"] > before and not (now["waiting"] or now["at_work"])

    eventually(is_idle)
    assert figures(case.system)["begun_total"] - before < CLIENTS * rows * sentences / 2


# Translating

in_translating = pytest.mark.parametrize("case", [TRANSLATING], ids=str, indirect=True)
in_describing = pytest.mark.parametrize("case", [DESCRIBING], ids=str, indirect=True)


@in_translating
def test_triton_s_own_generate_answers_where_there_is_one_piece(
    triton: RunningTriton, case: Case, alone: list[GeneratedText]
) -> None:
    with closing(http.client.HTTPConnection(triton.http_url, timeout=120)) as connection:
        connection.request(
            "POST", "/v2/models/translator/generate", json.dumps({"TEXT": case.rows[0].decode()})
        )
        reply = json.loads(connection.getresponse().read())
    assert (reply["TRANSLATION"], reply["TOKENS"]) == (alone[0].text, alone[0].tokens)


@in_translating
def test_translated_sentences_keep_the_whitespace_between_them(
    client: Client, case: Case, alone: list[GeneratedText]
) -> None:
    text = f"  {case.rows[0].decode()}\n\n{case.rows[1].decode()} "
    result = client.infer("translator", inputs_of(case, [text.encode()]))
    (answer,) = read(case, result)
    assert answer.text == f"  {alone[0].text}\n\n{alone[1].text} "
    sentences = json.loads(result.as_numpy("SENTENCES").item())
    assert [answer.text[begin:end] for begin, end, _ in sentences] == [alone[0].text, alone[1].text]
    assert [score for _, _, score in sentences] == pytest.approx([alone[0].score, alone[1].score], abs=1e-3)
    assert answer.tokens == (alone[0].tokens or 0) + (alone[1].tokens or 0)


@in_translating
def test_unusual_texts_and_the_longest_one_are_answered(client: Client, case: Case) -> None:
    odd = ["What is not Russian at all.", "😀 → 12", "א" * 50, "\u0301\u202e\ufeffда", "!"]
    assert all((answer.score or 0) <= 0 for answer in answered(client, case, *map(str.encode, odd)))
    (longest,) = answered(client, case, ("Я люблю чай, а он любит кофе. " * 100)[:MAX_CHARACTERS].encode())
    assert (longest.tokens or 0) > 100


@in_translating
def test_rows_beyond_the_queue_are_refused_unless_one_request_holds_them(client: Client, case: Case) -> None:
    def failure(request: Any) -> str:
        try:
            request.get_result()
        except Refusal as exc:
            return str(exc)
        return ""

    rows = [("Да. " * 80).encode()] * 16  # two such requests are more than may wait
    waiting = [client.async_infer("translator", inputs_of(case, rows)) for _ in range(12)]
    refused = [why for why in map(failure, waiting) if why]
    assert 0 < len(refused) < len(waiting)
    assert all("may: send the request again later" in why for why in refused)


def infer(client: Client, model: str, **inputs: np.ndarray) -> triton_http.InferResult:
    tensors = []
    for name, values in inputs.items():
        tensors.append(triton_http.InferInput(name, values.shape, np_to_triton_dtype(values.dtype)))
        tensors[-1].set_data_from_numpy(values)
    return client.infer(model, tensors)


def padded(words: Sequence[int]) -> np.ndarray:
    """A source or a target as the first users of onnx-model send it."""
    return np.array([[*words, *[1] * (50 - len(words))]], np.int32)


@in_translating
def test_a_client_side_loop_over_whole_steps_gives_the_same_words(
    client: Client, triton: RunningTriton, case: Case, network: ServedNetwork, alone: list[GeneratedText]
) -> None:
    triton.load("onnx-model")

    def steps(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        # tritonclient returns read-only arrays.
        return infer(client, "onnx-model", source=source, target=target).as_numpy("output").copy()

    tokenizer: Any = network.vocabulary
    shortest = min(range(len(case.rows)), key=lambda row: alone[row].tokens or 0)
    source, tokens = padded(tokenizer.encode(case.rows[shortest].decode())), list[int]()
    for length in range(min((alone[shortest].tokens or 0) + 1, 49)):
        # Four rows are a batch: each has the same scores.
        target = padded([tokenizer.pad, *tokens])
        logits = steps(np.repeat(source, 4, axis=0), np.repeat(target, 4, axis=0))[:, length]
        logits[:, tokenizer.pad] = -np.inf
        assert len(set(logits.argmax(axis=1))) == 1
        tokens.append(int(logits[0].argmax()))
    assert tokenizer.decode(tokens) == alone[shortest].text
    with pytest.raises(Refusal, match="4"):
        steps(np.repeat(source, 5, axis=0), np.repeat(target, 5, axis=0))


# Describing photos


@in_describing
def test_the_separate_graphs_give_the_same_first_word(
    client: Client, triton: RunningTriton, network: ServedNetwork, alone: list[GeneratedText]
) -> None:
    triton.load("captioner_vision", "captioner_decoder")
    ((row,),) = network.requested({"IMAGE": PHOTOS[:1]})
    assert isinstance(row, Row)
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
def test_describe_prints_captions_whole_and_streamed(
    triton: RunningTriton, alone: list[GeneratedText], tmp_path: Path
) -> None:
    for number, photo in enumerate(PHOTOS[:3]):
        (tmp_path / f"{number}.jpg").write_bytes(photo)
    folder, first = str(tmp_path), str(tmp_path / "0.jpg")

    def said(*options: str) -> Result:
        return gourmet("caption", *options, "--url", triton.http_url)

    with connect(triton.http_url) as ours:
        info = ours.describe("captioner")
    doubts = ["  (not sure)" if info.is_sure(text) is False else "" for text in alone[:3]]
    lines = said(folder).stdout.splitlines()
    assert lines == [f"{tmp_path}/{n}.jpg: {alone[n].text}{doubts[n]}" for n in range(3)]
    assert said(first, "--stream").stdout.startswith(f"{first}: {alone[0].text}")
    for stream in ([], ["--stream"]):
        asked = said(first, "--prompt", "a photograph of", *stream)
        assert asked.stdout.startswith(f"{first}: a photograph of ")
    (tmp_path / "3.png").write_bytes(b"%PDF-1.7")
    with_other = said(folder)
    assert with_other.stdout.splitlines() == lines
    assert "3.png: this is a PDF document" in with_other.stderr
    assert "1 of 4 photos have no answer" in with_other.stderr
