"""The connection to Triton, against servers that answer it in every way they can."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from app.triton.connection import BadReply, Connection, Reply, TooLate

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nInference-Header-Content-Length: 2\r\n\r\n"
WHOLE = HEAD + b"hello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
GIVEN = Reply(200, b"hello", 2)


def within(seconds: float) -> Callable[[], float]:
    end = time.monotonic() + seconds
    return lambda: max(0.001, end - time.monotonic())


@contextlib.contextmanager
def server(*connections: list[list[bytes]], pause_s: float = 0.0) -> Iterator[tuple[Connection, list[bytes]]]:
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
        connection = Connection(f"127.0.0.1:{listener.getsockname()[1]}", 1.0)
        try:
            yield connection, asked
        finally:
            connection.close()
            listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join(5)


def ask(connection: Connection, seconds: float = 5.0) -> Reply:
    return connection.exchange("POST", "/v2/x", within(seconds), b"body", {"traceparent": "00-1-2-01"})


def test_a_reply_is_read_however_it_comes_and_the_connection_kept() -> None:
    pieces = [WHOLE[at : at + 7] for at in range(0, len(WHOLE), 7)]
    with server([[WHOLE], pieces, [CHUNKED]]) as (connection, asked):
        assert [ask(connection), ask(connection)] == [GIVEN, GIVEN]
        assert ask(connection) == Reply(200, b"hello", None)
    assert asked[0].startswith(b"POST /v2/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert asked[0].endswith(b"\r\ntraceparent: 00-1-2-01\r\nContent-Length: 4\r\n\r\nbody")


@pytest.mark.parametrize("closes", [[[WHOLE]], [[WHOLE.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")]]])
def test_a_kept_connection_that_ended_is_opened_again(closes: list[list[bytes]]) -> None:
    with server(closes, [[WHOLE]]) as (connection, asked):
        assert [ask(connection), ask(connection)] == [GIVEN, GIVEN]
    assert len(asked) == 2


def test_a_request_that_ends_two_connections_is_not_sent_a_third_time() -> None:
    with server([[WHOLE], []], [[]], [[WHOLE]]) as (connection, asked):
        assert ask(connection) == GIVEN
        with pytest.raises(ConnectionError):
            ask(connection)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Le", HEAD + b"he"]
)
def test_what_is_not_a_whole_reply_is_not_believed(answer: bytes) -> None:
    with server([[answer]]) as (connection, _), pytest.raises(BadReply):
        ask(connection)


def test_a_reply_that_drips_in_is_given_up_when_its_time_is_over_and_not_with_each_drop() -> None:
    with server([[HEAD, *[b"h"] * 4]], pause_s=0.2) as (connection, _):
        began = time.monotonic()
        with pytest.raises(TooLate):
            ask(connection, 0.5)
        assert 0.4 < time.monotonic() - began < 0.7


def test_a_server_that_does_not_read_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Connection(f"127.0.0.1:{silent.getsockname()[1]}", 1.0)
        began = time.monotonic()
        with contextlib.closing(connection), pytest.raises(TooLate):
            connection.exchange("POST", "/", within(0.5), bytes(20_000_000))
        assert time.monotonic() - began < 0.8
