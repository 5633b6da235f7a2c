"""Pieces of an answer over generate_stream, and what becomes of servers that send bad ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support.listener import Listen, http, listen

from gourmet.client.deadline import SILENCE_S, Deadline
from gourmet.client.errors import (
    InvalidRequest,
    ModelFailed,
    ModelUnavailable,
    NoAnswerInTime,
    NotTriton,
    TritonError,
    TritonUnreachable,
)
from gourmet.client.triton import Triton
from gourmet.contracts import ModelInfo, Tensors, TensorSpec

__all__ = ["listen"]  # the fixture

MODEL = ModelInfo(
    "m",
    (TensorSpec("text", "BYTES", (1,)),),
    (TensorSpec("answer", "BYTES", (1,)), TensorSpec("tokens", "INT32", (1,))),
    decoupled=True,
)
INPUTS = {"text": np.array([b"one \xd1\x82\xd1\x80\xd0\xb8"], np.object_)}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def ask(url: str, deadline_s: float = 3.0) -> Iterator[Tensors | None]:
    return Triton(url).stream(MODEL, INPUTS, Deadline(deadline_s), "mine")


def test_pieces_are_tensors_by_name_however_their_bytes_are_cut(listen: Listen) -> None:
    sent = event(model_name="m", answer="чай", tokens=1) + event(answer="b", tokens=2, other=3)
    whole = HEAD + chunks(sent[:9], sent[9:50], sent[50:]) + b"0\r\n\r\n"
    listener = listen({"/generate_stream": whole})
    first, second = ask(listener.url)
    assert first
    assert second
    assert (first["answer"].tolist(), first["tokens"].tolist()) == (["чай".encode()], [1])
    assert first["tokens"].dtype == np.int32
    assert second.keys() == {"answer", "tokens"}
    assert json.loads(listener.bodies[-1]) == {"id": "mine", "text": ["one три"]}
    assert listener.asked == ["/v2/models/m/generate_stream"]


def test_a_silence_is_reported_and_the_deadline_ends_it(listen: Listen) -> None:
    started = time.monotonic()
    pieces = ask(listen({"/generate_stream": HEAD + chunks(event(answer="a"))}).url, SILENCE_S + 0.3)
    assert next(pieces) is not None
    assert next(pieces) is None
    with pytest.raises(NoAnswerInTime):
        next(pieces)
    assert SILENCE_S + 0.2 < time.monotonic() - started < SILENCE_S + 1


def test_closing_it_closes_the_connection(listen: Listen) -> None:
    listener = listen({"/generate_stream": HEAD + chunks(event(answer="a"))})
    pieces = ask(listener.url)
    assert next(pieces)
    assert listener.open_connections == 1
    pieces.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    while listener.open_connections and time.monotonic() < deadline:
        time.sleep(0.02)
    assert listener.open_connections == 0


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (http({"error": "no such input"}, "400 Bad Request"), InvalidRequest, "no such input"),
        (http({"error": "the reason"}, "500 Internal"), ModelFailed, "the reason"),
        (HEAD + chunks(event(error="the reason")) + b"0\r\n\r\n", ModelFailed, "the reason"),
        (HEAD + chunks(b"data: {\n\n") + b"0\r\n\r\n", NotTriton, "cannot be read"),
        (HEAD + chunks(event(tokens="many")) + b"0\r\n\r\n", NotTriton, "cannot be read"),
        (http({}), NotTriton, "is not Triton"),
        (b"", TritonUnreachable, "no Triton answers"),
        (HEAD + chunks(event(answer="a")), TritonUnreachable, "no Triton answers"),
    ],
)
def test_what_goes_wrong_is_an_error_of_the_tree(
    listen: Listen, answer: bytes, error: type[TritonError], message: str
) -> None:
    listener = listen({"/generate_stream": answer, "/ready": http({})}, ends_each=True)
    with pytest.raises(error, match=message):
        list(ask(listener.url))


def test_a_model_that_is_not_ready_is_named(listen: Listen) -> None:
    script = {"/stats": http({"model_stats": []}), "/index": http([]), "": http({}, "400 Bad Request")}
    with pytest.raises(ModelUnavailable, match="'m' is not ready"):
        list(ask(listen(script).url))
