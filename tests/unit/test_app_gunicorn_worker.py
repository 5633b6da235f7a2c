"""The worker's own part of connections: threads for whole heads alone; real clients are in tests/web."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import get_parser
from gunicorn.http.errors import ParseException
from support.eventually import eventually

from app.admission import gunicorn_conf
from app.admission.gunicorn_worker import ConnectionPool, is_complete

ME, YOU = "192.0.2.1", "192.0.2.2"
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Never:
    """A connection that must not be read from."""

    def recv(self, size: int) -> bytes:
        raise AssertionError("more is read than is there")


@pytest.mark.parametrize(
    "sent",
    [
        REQUEST,
        b"\r\n" + REQUEST,
        b"\r\n\r\n\r\n",
        b"\r\n\r\n" + REQUEST,
        b"GET / HTTP/1.1\r\n\r\n",
        REQUEST + b"rest",
        b"GET / HTTP/1.1\n\n",
        b"GET / HTTP/1.1\r\nHost: x\n\n",
        b"\n",
        b"\x16\x03\x01\n",
    ],
)
def test_where_a_head_is_complete_gunicorn_reads_no_further(sent: bytes) -> None:
    """It answers or raises; it would wait for ever otherwise, with a thread."""
    assert is_complete(sent)
    parser = get_parser(Config(), Never(), (ME, 1))
    parser.unreader.unread(sent)
    with contextlib.suppress(ParseException):
        next(parser)


@pytest.mark.parametrize("size", range(len(REQUEST)))
def test_no_beginning_of_a_head_is_complete(size: int) -> None:
    assert not is_complete(REQUEST[:size])
    assert not is_complete(b"\r\n" + REQUEST[:size])


class Pool:
    """A pool of two threads, which may have two connections without one, and what it had them answer."""

    def __init__(self) -> None:
        config = Config()
        config.set("threads", 2)
        config.set("keepalive", 1)
        self.worker = SimpleNamespace(cfg=config, alive=True, nr_conns=0, worker_connections=4)
        self.connections = ConnectionPool(self.worker)  # type: ignore[arg-type]
        self.answered: list[bytes] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.opened: list[socket.socket] = []

    def open(self, client: str = ME) -> tuple[socket.socket, Future[bool]]:
        ours, theirs = socket.socketpair()
        self.opened += [ours, theirs]
        theirs.settimeout(5)
        accepted = SimpleNamespace(sock=ours, client=(client, 1), parser=None)
        return theirs, self.connections.submit(self.handle, accepted)

    def handle(self, accepted: Any) -> bool:
        """Whether the connection is kept; as gunicorn, it is read from here and not before."""
        self.may_answer.wait(5)
        asked = accepted.sock.recv(65_536)
        self.answered.append(asked)
        return b"close" not in asked


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.connections.shutdown()
    for each in made.opened:
        each.close()


def test_a_request_is_answered_once_its_head_is_there_and_the_next_on_the_same_connection(pool: Pool) -> None:
    theirs, ended = pool.open()
    for at in range(len(REQUEST) - 1):
        theirs.sendall(REQUEST[at : at + 1])
    time.sleep(0.1)
    assert not pool.answered
    theirs.sendall(REQUEST[-1:])
    eventually(lambda: pool.answered == [REQUEST])
    for pause_s in (0.0, 0.2):  # while the thread still waits, and later
        time.sleep(pause_s)
        theirs.sendall(REQUEST)
        eventually(lambda: pool.answered[-1] == REQUEST)
        pool.answered.append(b"")
    assert not ended.done()
    theirs.sendall(REQUEST.replace(b"x", b"close"))
    assert theirs.recv(100) == b""
    theirs.close()
    assert ended.result(5) is False


@pytest.mark.parametrize(
    ("sent", "told"),
    [(b"", b""), (b"GET", b"HTTP/1.1 408 "), (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 6000, b"HTTP/1.1 431 ")],
    ids=["silence", "half a head", "a head without end"],
)
def test_who_sends_no_head_is_ended_with_the_reason(pool: Pool, sent: bytes, told: bytes) -> None:
    theirs, ended = pool.open()
    theirs.sendall(sent)
    assert theirs.recv(100).startswith(told)
    assert ended.result(5) is False
    assert not pool.answered


@pytest.mark.parametrize("sent", [b"GET / HT", b""])
def test_the_end_of_a_connection_is_the_end_of_a_head_that_has_begun(pool: Pool, sent: bytes) -> None:
    pool.worker.cfg.set("keepalive", 60)
    theirs, ended = pool.open()
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    assert ended.result(5) is False


def test_of_too_many_the_oldest_of_the_client_with_most_has_to_go(pool: Pool) -> None:
    pool.worker.cfg.set("keepalive", 60)
    ended = []
    for client in (YOU, ME):
        ended.append(pool.open(client)[1])
        eventually(lambda: len(pool.connections._waiting) == len(ended))  # no thread waits for its request
    ended.append(pool.open(ME)[1])
    eventually(lambda: any(each.done() for each in ended))
    assert [each.done() for each in ended] == [False, True, False]


def test_no_client_has_all_threads_and_who_waits_for_one_gets_it(pool: Pool) -> None:
    pool.worker.worker_connections = 100
    pool.may_answer.clear()
    mine = [pool.open(ME)[0] for _ in range(6)]
    for each in mine:
        each.sendall(REQUEST)
    eventually(lambda: pool.connections._shares.free == 1)
    other, _ = pool.open(YOU)
    other.sendall(REQUEST)
    eventually(lambda: pool.connections._shares.free == 0)
    pool.may_answer.set()
    eventually(lambda: len(pool.answered) == 7)


def test_a_worker_that_stops_waits_for_requests_on_their_way_and_no_longer(pool: Pool) -> None:
    pool.worker.cfg.set("keepalive", 60)
    _, silent = pool.open()
    asking, _ = pool.open(YOU)
    pool.worker.alive = False
    time.sleep(0.5)
    asking.sendall(REQUEST)
    eventually(lambda: pool.answered == [REQUEST])
    assert silent.result(5) is False


def test_what_a_worker_will_count_has_its_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: a disk that was full ended the worker that was the first to count something new."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    gunicorn_conf.post_fork(None, None)
    files = list(tmp_path.glob(f"*_{os.getpid()}.db"))
    assert len(files) == 3
    for file in files:
        assert file.stat().st_blocks * 512 >= file.stat().st_size >= 1 << 20
