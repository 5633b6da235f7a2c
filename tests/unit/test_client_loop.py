"""A loop that the client turns: a request a step, until the system's own client has its answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.measure import client_loop, transports
from gourmet.measure.client_loop import Asking
from gourmet.measure.inputs import InputRows
from gourmet.measure.results import LoadSpec
from gourmet.measure.task import Addresses, wire_for
from gourmet.measure.transports import LoopedHttp, RequestFailed
from gourmet.systems.translator.client_loop import PLACES, TranslatorLoop

INFO = ModelInfo("steps", (TensorSpec("n", "INT32", (-1, 1)),), (), max_batch_size=4)


class Counting:
    """Asks for the number after the one before, up to the example's."""

    def ask(self, example: bytes) -> Asking:
        number = np.zeros((1, 1), np.int32)
        while number[0, 0] < int(example):
            outputs = yield {"n": number}
            number = outputs["next"]
        return {"text": np.array([[str(number[0, 0]).encode()]], np.object_)}


class Server(BaseHTTPRequestHandler):
    """Triton's answers to one input `n`: the number after it; after 5 there is none."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        header = int(self.headers["Inference-Header-Content-Length"])
        number = int(np.frombuffer(body[header:], np.int32)[0])
        tensor = np.array([[number + 1]], np.int32).tobytes()
        output = {"name": "next", "datatype": "INT32", "shape": [1, 1]}
        said = json.dumps({"outputs": [output | {"parameters": {"binary_data_size": 4}}]}).encode()
        self.send_response(200 if number < 5 else 500)
        self.send_header("Inference-Header-Content-Length", str(len(said)))
        self.send_header("Content-Length", str(len(said) + len(tensor)))
        self.end_headers()
        self.wfile.write(said + tensor)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopedHttp]:
    monkeypatch.setattr(transports.client_loop, "of", lambda system: Counting())
    rows = InputRows(INFO, INFO.inputs, {}, "numbers", (b"3", b"9"), "counting")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = wire_for(
            Addresses(f"127.0.0.1:{server.server_port}"), LoadSpec("steps", through="loop"), rows
        )
        assert isinstance(found, LoopedHttp)
        yield found
        server.shutdown()


async def asked(wire: LoopedHttp, row: int) -> transports.RawReply:
    try:
        return await wire.send(wire.request((row,)))
    finally:
        await wire.close()


def test_it_asks_as_often_as_the_answer_takes_and_says_what_travelled(wire: LoopedHttp) -> None:
    reply = asyncio.run(asked(wire, 0))
    assert wire.read(reply)["text"].item() == b"3"
    assert reply.requests == 3
    assert reply.transferred > 3 * (4 + 4)


def test_a_step_that_fails_fails_the_whole_answer(wire: LoopedHttp) -> None:
    with pytest.raises(RequestFailed, match="HTTP 500"):
        asyncio.run(asked(wire, 1))


class Tokens:
    pad, end = 1, 0

    def encode(self, text: str) -> list[int]:
        return [*map(ord, text), self.end]

    def decode(self, numbers: list[int]) -> str:
        return "".join(map(chr, numbers))


def scores(*pieces: int) -> dict[str, np.ndarray]:
    """Each place says its piece; a pad is likelier, and no word."""
    found = np.zeros((1, PLACES, 128), np.float32)
    for place in range(PLACES):
        found[0, place, pieces[min(place, len(pieces) - 1)]] = 2
        found[0, place, Tokens.pad] = 3
    return {"output": found}


def test_the_translator_s_client_reads_the_newest_place_and_sends_all_words_so_far() -> None:
    loop = TranslatorLoop()
    loop.__dict__["tokenizer"] = Tokens()
    asking = loop.ask(b"xyz")
    sent = next(asking)
    assert sent["source"][0, :5].tolist() == [*map(ord, "xyz"), 0, 1]
    said = scores(ord("a"), ord("b"), Tokens.end)
    for so_far in ("a", "ab"):
        sent = asking.send(said)
        assert sent["target"][0, : len(so_far) + 2].tolist() == [1, *map(ord, so_far), 1]
    with pytest.raises(StopIteration) as done:
        asking.send(said)
    assert done.value.value["TRANSLATION"].item() == b"ab"
    assert done.value.value["TOKENS"].item() == 2


def test_an_answer_without_an_end_is_as_long_as_there_are_places() -> None:
    loop = TranslatorLoop()
    loop.__dict__["tokenizer"] = Tokens()
    asking = loop.ask(b"x")
    next(asking)
    for _ in range(PLACES - 1):
        asking.send(scores(ord("a")))
    with pytest.raises(StopIteration) as done:
        asking.send(scores(ord("a")))
    assert done.value.value["TOKENS"].item() == PLACES


def test_a_system_without_such_a_client_says_so() -> None:
    with pytest.raises(Exception, match=r"has no client_loop\.py"):
        client_loop.of("digits")
