"""The captioner on the real server: the same words whole, in pieces and in company; pictures are guarded."""

from __future__ import annotations

import base64
import csv
import http.client
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from click.testing import CliRunner, Result
from support.captioner_room import room_here
from support.hostile_rows import stubs
from support.planted import gif, plant
from support.triton import MODELS, RunningTriton, run_triton, some_models
from tritonclient.utils import np_to_triton_dtype

from gourmet.commands.caption import caption
from gourmet.contracts import GeneratedText, ModelInfo
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import wait_for
from gourmet.serving.connect import ask_sample, connect
from gourmet.serving.waiting import wait_until
from gourmet.systems.captioner.contract import BEAMS, MAX_TOKENS, PROMPT, SYSTEM
from gourmet.systems.captioner.serving import SERVING

PHOTOS = [*SYSTEM.examples(12, seed=3), SYSTEM.sample()]
BARE = ModelInfo("captioner", (), ())
Given = triton_http.InferInput


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """The two that answer, with decoders that never return from one picture."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plant(tmp_path_factory.mktemp("fault")).items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("captioners") / "models"
        parts = "captioner_vision", "captioner_decoder"
        some_models(folder, "captioner", "captioner_stream", *parts)
        yield from run_triton(folder)


@pytest.fixture(scope="module")
def client(server: RunningTriton) -> Iterator[triton_http.InferenceServerClient]:
    with triton_http.InferenceServerClient(server.http_url, concurrency=16, network_timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def alone() -> list[GeneratedText]:
    """What the loop answers each photo."""
    with room_here() as (network, room):
        asked = network.requested({"IMAGE": PHOTOS})
        return [wait_for([parts], network, room, within_s=60)[0] for parts in asked]


def given(photos: Sequence[bytes], **options: int | str) -> list[Given]:
    inputs = [Given("IMAGE", [len(photos), 1], "BYTES")]
    inputs[0].set_data_from_numpy(np.array(photos, np.object_)[:, None])
    for name, value in options.items():
        text = isinstance(value, str)
        inputs.append(Given(name, [len(photos), 1], "BYTES" if text else "INT32"))
        filled = np.full(
            (len(photos), 1), value.encode() if text else value, np.object_ if text else np.int32
        )
        inputs[-1].set_data_from_numpy(filled)
    return inputs


def captions(result: triton_http.InferResult) -> list[GeneratedText]:
    columns = [
        result.as_numpy(name).ravel().tolist() for name in ("CAPTION", "TOKENS", "SCORE", "ALTERNATIVES")
    ]
    return [
        GeneratedText(text.decode(), tokens, score, others.decode().splitlines())
        for text, tokens, score, others in zip(*columns, strict=True)
    ]


def streamed(server: RunningTriton, photo: bytes, **more: Any) -> Iterator[dict[str, Any]]:
    """Each event of Triton's own generate_stream, as curl would show it."""
    body = json.dumps({"IMAGE": base64.b64encode(photo).decode(), **more})
    with closing(http.client.HTTPConnection(server.http_url, timeout=120)) as connection:
        connection.request("POST", "/v2/models/captioner_stream/generate_stream", body)
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def same(found: Sequence[GeneratedText], wanted: Sequence[GeneratedText]) -> bool:
    scores = [[each.score for each in side] for side in (found, wanted)]
    words = [[(each.text, each.tokens) for each in side] for side in (found, wanted)]
    return words[0] == words[1] and np.allclose(*scores, atol=1e-4)


def test_the_words_are_those_of_the_loop_alone_however_photos_are_cut_and_merged(
    client: triton_http.InferenceServerClient, alone: list[GeneratedText]
) -> None:
    random = np.random.default_rng(4)
    cuts = [random.integers(0, len(PHOTOS), random.integers(1, 9)) for _ in range(12)]
    waiting = [client.async_infer("captioner", given([PHOTOS[row] for row in rows])) for rows in cuts]
    for rows, request in zip(cuts, waiting, strict=True):
        assert same(captions(request.get_result()), [alone[row] for row in rows])
    assert len({each.text for each in alone}) > 1


@pytest.mark.parametrize("model", ["captioner", "captioner_stream"])
def test_both_answer_the_sample(server: RunningTriton, model: str) -> None:
    assert ask_sample(server.http_url, "captioner", model).startswith("the sample shows: ")


def test_pieces_join_to_the_whole_caption_and_come_one_by_one_while_nobody_else_asks(
    server: RunningTriton, alone: list[GeneratedText]
) -> None:
    def told(photo: bytes) -> list[dict[str, Any]]:
        return list(streamed(server, photo))

    with ThreadPoolExecutor(8) as clients:
        one_by_one, many_at_once = [*map(told, PHOTOS)], [*clients.map(told, PHOTOS)]
    for found in (one_by_one, many_at_once):
        for pieces, whole in zip(found, alone, strict=True):
            assert "".join(piece["CAPTION"] for piece in pieces) == whole.text
            assert pieces[-1]["TOKENS"] == whole.tokens
    # Those that wait for their turn to be sent go together, of which a busy machine has some.
    assert sum(map(len, one_by_one)) > sum(len(whole.text.split()) for whole in alone) / 3


def test_a_prompt_begins_the_caption_and_limits_and_beams_are_heeded(
    client: triton_http.InferenceServerClient, server: RunningTriton, alone: list[GeneratedText]
) -> None:
    (prompted,) = captions(client.infer("captioner", given(PHOTOS[:1], PROMPT="a photograph of")))
    assert prompted.text.startswith("a photograph of ")
    (piece, *_) = streamed(server, PHOTOS[0], PROMPT="a photograph of")
    assert piece["CAPTION"].startswith("a photograph of")
    (few,) = captions(client.infer("captioner", given(PHOTOS[:1], MAX_TOKENS=3)))
    assert few.tokens == 3
    (searched,) = captions(client.infer("captioner", given(PHOTOS[:1], BEAMS=3)))
    assert len({searched.text, *searched.others}) == 3
    assert not alone[0].others


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({BEAMS: 9}, "BEAMS is 9; it has to be from 1 to 4"),
        ({MAX_TOKENS: 0}, "MAX_TOKENS is 0; it has to be from 1 to 40"),
        ({PROMPT: "a" * 101}, "PROMPT has 101 characters; a caption begins with at most 100"),
        ({PROMPT: "a " * 20}, "PROMPT has 20 pieces of words; a caption begins with at most 16"),
    ],
)
def test_what_may_not_be_asked_for_is_refused_with_what_may(
    client: triton_http.InferenceServerClient, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(triton_http.InferenceServerException, match=why):
        client.infer("captioner", given(PHOTOS[:1], **options))


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"", r"IMAGE row 1 of 2: the file is empty.* \[empty\]"),
        (b"%PDF-1.7", r"IMAGE row 1 of 2: this is a PDF document.* \[unsupported_format\]"),
        (PHOTOS[0][:900], r"IMAGE row 1 of 2: this JPEG cannot be decoded.* \[broken_picture\]"),
        (gif("crashes"), r"IMAGE row 1 of 2: .*its decoder crashed.* \[broken_picture\]"),
    ],
)
def test_a_picture_that_cannot_be_used_fails_its_own_request_with_a_reason(
    client: triton_http.InferenceServerClient, alone: list[GeneratedText], blob: bytes, why: str
) -> None:
    beside = client.async_infer("captioner", given([PHOTOS[2]]))
    with pytest.raises(triton_http.InferenceServerException, match=why) as refused:
        client.infer("captioner", given([PHOTOS[0], blob]))
    assert refused.value.status() == "400"
    assert same(captions(beside.get_result()), [alone[2]])


@pytest.mark.slow
def test_pictures_that_take_long_to_decode_stall_nobody(
    client: triton_http.InferenceServerClient, alone: list[GeneratedText]
) -> None:
    slow = [client.async_infer("captioner", given([gif("never returns")])) for _ in range(3)]
    time.sleep(0.2)
    began = time.monotonic()
    assert same(captions(client.infer("captioner", given(PHOTOS[:4]))), alone[:4])
    assert time.monotonic() - began < 3
    for request in slow:
        with pytest.raises(triton_http.InferenceServerException, match=r"took too long.* \[too_slow\]"):
            request.get_result()


def test_who_is_out_of_time_is_told_so(client: triton_http.InferenceServerClient) -> None:
    for photo, options in ((PHOTOS[0], {}), (PHOTOS[0], {BEAMS: 4}), (gif("sleeps"), {})):
        with pytest.raises(triton_http.InferenceServerException, match="not described in time"):
            client.infer("captioner", given([photo], **options), timeout=1000)


def test_who_goes_away_ends_the_work(server: RunningTriton, alone: list[GeneratedText]) -> None:
    before = len(server.log)
    image = triton_grpc.InferInput("IMAGE", [1, 1], "BYTES")
    image.set_data_from_numpy(np.array([[gif("sleeps")]], np.object_))
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        call = client.async_infer("captioner", [image], lambda result, error: None)
        time.sleep(0.5)
        call.cancel()
        wait_until(
            lambda: any("its client left" in line for line in server.log[before:]), 5, "decoded for nobody"
        )
    assert "".join(piece["CAPTION"] for piece in streamed(server, PHOTOS[0])) == alone[0].text


def test_the_parts_that_are_models_of_their_own_find_the_same_first_word(
    client: triton_http.InferenceServerClient, alone: list[GeneratedText]
) -> None:
    network = SERVING.open(package.read(MODELS / "captioner" / "1" / package.FILE), 1)
    ((row,),) = network.requested({"IMAGE": PHOTOS[:1]})

    memory = infer(client, "captioner_vision", pixels=row.source[np.newaxis]).as_numpy("memory")
    _, layers, pair, heads, places, size = memory.shape
    found = infer(
        client,
        "captioner_decoder",
        token=np.array([[network.vocabulary.start]]),
        length=np.zeros((1, 1), np.int64),
        cache=np.zeros((1, layers, pair, heads, 1, size), np.float32),
        memory=memory,
        mask=np.ones((1, places), np.int32),
    )
    first = network.vocabulary.decode(found.as_numpy("tokens")[0, :1])
    assert first
    assert alone[0].text.startswith(first)


def infer(
    client: triton_http.InferenceServerClient, model: str, **inputs: np.ndarray
) -> triton_http.InferResult:
    tensors = [Given(name, each.shape, np_to_triton_dtype(each.dtype)) for name, each in inputs.items()]
    for tensor, each in zip(tensors, inputs.values(), strict=True):
        tensor.set_data_from_numpy(each)
    return client.infer(model, tensors)


def test_the_verb_says_what_photos_show_whole_streamed_and_as_a_table(
    server: RunningTriton, alone: list[GeneratedText], tmp_path: Path
) -> None:
    for number, photo in enumerate(PHOTOS[:3]):
        (tmp_path / f"{number}.jpg").write_bytes(photo)
    folder, first = str(tmp_path), str(tmp_path / "0.jpg")

    def said(*options: str) -> Result:
        return CliRunner().invoke(caption, [*options, "--url", server.http_url])

    with connect(server.http_url) as triton:
        info = triton.describe("captioner")
    sure = [info.is_sure(each) for each in alone[:3]]
    doubts = ["  (not sure)" if each is False else "" for each in sure]
    lines = said(folder).stdout.splitlines()
    answers = [each.text + doubt for each, doubt in zip(alone[:3], doubts, strict=True)]
    assert lines == [f"{tmp_path}/{n}.jpg: {answer}" for n, answer in enumerate(answers)]
    assert said(first, "--stream").stdout.startswith(f"{first}: {alone[0].text}")
    assert "a photograph of" in said(first, "--prompt", "a photograph of").stdout
    (tmp_path / "3.png").write_bytes(b"%PDF-1.7")
    table = said(folder, "--csv")
    rows = list(csv.DictReader(table.stdout.splitlines()))
    assert [row["caption"] for row in rows] == [each.text for each in alone[:3]]
    assert [float(row["score"]) for row in rows] == pytest.approx(
        [each.score for each in alone[:3]], abs=1e-3
    )
    assert [row["sure"] for row in rows] == [{True: "yes", False: "no", None: ""}[each] for each in sure]
    assert "3.png: this is a PDF document" in table.stderr
    assert str(table.exception) == "1 of 4 photos have no caption"


def test_the_processes_that_serve_captions_have_neither_torch_nor_transformers(server: RunningTriton) -> None:
    serving = [psutil.Process(pid) for pid in stubs(server.http_url)]
    assert len(serving) >= 4  # of the ONNX models too
    for process in serving:
        opened = {Path(each.path).name for each in process.memory_maps()}
        assert any("onnxruntime" in name for name in opened)
        assert not [name for name in opened if name.startswith(("libtorch", "libc10", "tokenizers"))]
