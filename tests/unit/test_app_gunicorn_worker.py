"""The worker's own part of answers and of a connection's end; real clients are in tests/web."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.http import get_parser

from app.admission import gunicorn_conf
from app.admission.gunicorn_worker import Worker

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
