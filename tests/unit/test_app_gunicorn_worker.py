"""The worker's own part of answers and of a connection's end; real clients are in tests/web."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.http import get_parser

from app.gunicorn_worker import Worker
from app.one_write import OneWrite

HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\n"


@pytest.mark.parametrize(("body", "was_read"), [(b"done", True), (b"do", False)], ids=["whole", "half"])
def test_a_connection_is_kept_where_its_body_was_read_however_many_others_linger(
    body: bytes, was_read: bool
) -> None:
    config = Config()
    worker = Worker(0, 0, [], None, 0, config, None)
    while worker._may_linger.acquire(blocking=False):
        pass
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(worker.tmp):
        theirs.sendall(HEAD + body)
        parser = get_parser(config, ours, ("127.0.0.1", 1))
        request = next(parser)
        if was_read:
            assert request.body.read() == body
        assert worker._finish(SimpleNamespace(parser=parser)) is was_read


@pytest.fixture
def packets() -> Iterator[tuple[OneWrite, socket.socket]]:
    """A connection on which each write can be told from the next, and its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setblocking(False)
        yield OneWrite(ours), theirs


def test_the_head_of_an_answer_waits_for_what_follows_it(packets: tuple[OneWrite, socket.socket]) -> None:
    answer, theirs = packets
    answer.sendall(b"head")
    with pytest.raises(BlockingIOError):
        theirs.recv(99)
    answer.sendall(b", body")
    answer.sendall(b"more")
    assert [theirs.recv(99), theirs.recv(99)] == [b"head, body", b"more"]
    assert answer.fileno() == answer.end().fileno()


def test_a_head_that_nothing_follows_is_sent_at_the_end(packets: tuple[OneWrite, socket.socket]) -> None:
    answer, theirs = packets
    answer.sendall(b"head")
    answer.end()
    assert theirs.recv(99) == b"head"


def test_a_file_follows_its_head(packets: tuple[OneWrite, socket.socket], tmp_path: Path) -> None:
    answer, theirs = packets
    (tmp_path / "file").write_bytes(b"content")
    answer.sendall(b"head")
    with (tmp_path / "file").open("rb") as file:
        answer.sendfile(file)
    assert [theirs.recv(99), theirs.recv(99)] == [b"head", b"content"]
