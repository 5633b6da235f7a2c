"""The transport over HTTP, against servers that answer it in every way they can."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gourmet.client.transport import Call, Reply
from support.listener import Listen, listen
from support.listener import http as answer_of

from gourmet.client import http
from gourmet.client.deadline import Deadline
from gourmet.client.errors import (
    ApiRestricted,
    NoAnswerInTime,
    NotTriton,
    TritonError,
    TritonRefused,
    TritonUnreachable,
)
from gourmet.client.http import HttpTransport
from gourmet.client.triton import Triton

__all__ = ["listen"]  # the fixture

WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{"\r\n5;x=y\r\na":1}\r\n0\r\n\r\n'
GIVEN = Reply({"a": 1})
CALL = Call("load", "m", {"of": "body"}, headers={"traceparent": "00-1-2-01"}, keys={"key": "secret"})


@contextlib.contextmanager
def server(
    *connections: list[list[bytes]], pause_s: float = 0.0
) -> Iterator[tuple[HttpTransport, list[bytes]]]:
    """Answers each request on each connection with its pieces, and closes after the last of them."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in connections:
                with contextlib.suppress(OSError), listener.accept()[0] as kept:
                    for pieces in answers:
                        asked.append(kept.recv(65_536))
                        for piece in pieces:
                            kept.sendall(piece)
                            time.sleep(pause_s)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        transport = HttpTransport(f"127.0.0.1:{listener.getsockname()[1]}", 1.0)
        try:
            yield transport, asked
        finally:
            transport.close()
            listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join(5)


def ask(transport: HttpTransport, seconds: float = 5.0) -> Reply | None:
    (reply,) = transport.send(CALL, Deadline(seconds))
    return reply


def test_a_reply_is_read_however_it_comes_and_the_connection_kept() -> None:
    pieces = [WHOLE[at : at + 7] for at in range(0, len(WHOLE), 7)]
    drops = [CHUNKED[at : at + 3] for at in range(0, len(CHUNKED), 3)]
    with server([[WHOLE], pieces, [CHUNKED], drops]) as (transport, asked):
        assert [ask(transport) for _ in range(4)] == [GIVEN] * 4
    assert asked[0].startswith(b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: 127.0.0.1:")
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.endswith(b"\r\ntraceparent: 00-1-2-01\r\nkey: secret\r\nContent-Length: %d" % len(body))
    assert json.loads(body) == {"of": "body"}


@pytest.mark.parametrize("closes", [[[WHOLE]], [[WHOLE.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")]]])
def test_a_kept_connection_that_ended_is_opened_again(closes: list[list[bytes]]) -> None:
    with server(closes, [[WHOLE]]) as (transport, asked):
        assert [ask(transport), ask(transport)] == [GIVEN, GIVEN]
    assert len(asked) == 2


def test_a_request_that_ends_two_connections_is_not_sent_a_third_time() -> None:
    with server([[WHOLE], []], [[]], [[WHOLE]]) as (transport, asked):
        assert ask(transport) == GIVEN
        with pytest.raises(TritonUnreachable):
            ask(transport)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhe",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[[",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_what_is_not_a_whole_reply_is_not_believed(answer: bytes) -> None:
    with server([[answer]]) as (transport, _), pytest.raises(NotTriton, match="is not Triton"):
        ask(transport)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 5000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 5000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n%b\r\n" % (b"x" * 1024) * 5,
    ],
)
def test_a_reply_without_end_is_given_up_before_it_fills_the_memory(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MOST_BYTES", 4096)
    with server([[answer]]) as (transport, _), pytest.raises(NotTriton, match="it is longer than"):
        ask(transport)


STREAM = Call("stream", "m")
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b'data: {"model_name": "m", "text": "x"}\n\n'


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (CALL, b"HTTP/1.1 200 OK\r\nContent-Length: 6001\r\n\r\n[" + b"{}," * 1999 + b"0]]"),
        (Call("infer", "m"), b"HTTP/1.1 200 OK\r\nContent-Length: 6000\r\n\r\n" + b" " * 5998 + b"{}"),
        (STREAM, CHUNKS + b"400\r\n%b\r\n" % (b"x" * 1024) * 8),
        (STREAM, CHUNKS + b"1770\r\n%b{}\n\n\r\n" % (b"data: {" + b" " * 5989)),
    ],
    ids=["whole", "of a model", "line without end", "long piece"],
)
def test_json_that_would_take_many_times_its_size_is_not_read(
    call: Call, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MOST_JSON", 4096)
    with server([[answer]]) as (transport, _), pytest.raises(NotTriton, match="it is longer than"):
        list(transport.send(call, Deadline(5)))


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (CALL, [b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", *[b"x"] * 6000]),
        (CALL, [b"HTTP/1.1 200 OK\r\nX: ", *[b"x"] * 6000]),
        (STREAM, [CHUNKS, *[b"%x\r\n%b\r\n" % (len(PIECE) * 20, PIECE * 20)] * 6000]),
    ],
    ids=["body", "head", "pieces"],
)
def test_an_answer_that_never_pauses_is_given_up_when_its_time_is_over(
    call: Call, answer: list[bytes]
) -> None:
    with server([answer], pause_s=0.0002) as (transport, _):
        began = time.monotonic()
        with pytest.raises(NoAnswerInTime):
            for _ in transport.send(call, Deadline(0.3)):
                pass
        assert time.monotonic() - began < 0.6


def test_a_refusal_without_a_reason_says_its_status() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere\r\n\r\n"
    says = "it answers with status 302 alone"
    with server([[moved]]) as (transport, _), pytest.raises(TritonRefused, match=says):
        ask(transport)


def test_a_reply_that_drips_in_is_given_up_when_its_time_is_over_and_not_with_each_drop() -> None:
    with server([[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", *[b"h"] * 4]], pause_s=0.2) as (slow, _):
        began = time.monotonic()
        with pytest.raises(NoAnswerInTime, match=r"within 0\.5 s"):
            ask(slow, 0.5)
        assert 0.4 < time.monotonic() - began < 0.7


def test_a_server_that_does_not_read_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        transport = HttpTransport(f"127.0.0.1:{silent.getsockname()[1]}", 1.0)
        began = time.monotonic()
        with contextlib.closing(transport), pytest.raises(NoAnswerInTime):
            list(transport.send(Call("load", "m", {"config": "x" * 20_000_000}), Deadline(0.5)))
        assert time.monotonic() - began < 0.8


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (b'{"error": "no such model"}', TritonRefused, "no such model"),
        (b"plain words", TritonRefused, "plain words"),
        (b'{"error": "This API is restricted, ..."}', ApiRestricted, "TRITON_ADMIN_KEY"),
    ],
)
def test_an_answer_that_is_an_error_is_raised_with_its_reason(
    said: bytes, error: type[TritonError], message: str
) -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    with server([[answer]]) as (transport, _), pytest.raises(error, match=message) as caught:
        ask(transport)
    assert getattr(caught.value, "status", 0) == 400


def test_a_connection_has_a_longest_life(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an address that balances, one that is kept for ever never reaches a server that came since."""
    listener = listen(answer_of({}))
    with Triton(listener.url) as triton:
        for _ in range(5):
            triton.check_live()
        assert listener.connections == 1
    monkeypatch.setattr(http, "_LIFE_S", 0.0)
    with Triton(listener.url) as triton:
        for _ in range(5):
            triton.check_live()
    assert listener.connections == 1 + 5


def test_a_name_lookup_that_hangs_ends_with_the_request_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [released.wait(60)][1:])
    with Triton("triton.example:8000", 0.3) as triton, pytest.raises(NoAnswerInTime):
        triton.check_live()
    assert not released.is_set()
    released.set()


def test_the_last_address_is_used_while_dns_is_away(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen(answer_of({}), ends_each=True)
    resolve = socket.getaddrinfo

    def without_dns(host: str, *rest: Any, **named: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror("no DNS server answers")
        return resolve(host, *rest, **named)

    with Triton(listener.url.replace("127.0.0.1", "localhost")) as triton:
        triton.check_live()
        monkeypatch.setattr(socket, "getaddrinfo", without_dns)
        triton.check_live()
    assert listener.connections == 2
