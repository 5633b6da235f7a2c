"""The app as a process: oversized uploads over a socket, its workers, its end, refusals to start."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.web_app import post_head

from gourmet.serving.preflight import free_ports

AWAY = "127.0.0.1:9"


@pytest.fixture(scope="module")
def web(start: Callable[..., Any]) -> Any:
    """An app that needs no Triton for what is asked of it here."""
    return start(AWAY, MAX_UPLOAD_MB="1")


PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


def answer(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            data += chunk
            if b'"request_id"' in data:
                break
    return data


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
@pytest.mark.parametrize("megabytes", [2, 20])
def test_a_client_that_sends_too_much_reads_the_413(web: Any, chunked: bool, megabytes: int) -> None:
    body = PART + b"\xff" * (megabytes * 1_000_000)
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as connection:
        connection.sendall(post_head(None if chunked else len(body)))
        if chunked:
            connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        else:
            connection.sendall(body)
        reply = answer(connection)
    assert reply.startswith(b"HTTP/1.1 413")
    assert b"upload_too_large" in reply


@pytest.mark.parametrize("pause_s", [0.0, 0.005, 0.1], ids=["at once", "soon", "later"])
def test_a_kept_connection_answers_requests_sent_without_a_pause(web: Any, pause_s: float) -> None:
    request, body = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b'{"alive":true}\n'
    with socket.create_connection(("127.0.0.1", web.port), timeout=5) as connection:
        for at_once in (1, 1, 1, 3, 1):  # of three, two wait in gunicorn's buffer
            connection.sendall(request * at_once)
            replies = b""
            while replies.count(body) < at_once:
                replies += connection.recv(65536)
            assert replies.count(b"HTTP/1.1 200") == at_once
            time.sleep(pause_s)


@pytest.mark.parametrize("sent", [b"", PART + b"\xff\xd8"])
def test_a_client_that_disconnects_leaves_one_log_line(web: Any, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", web.port)) as connection:
        connection.sendall(post_head(100_000) + sent)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and web.request("GET", "/healthz").status != 200:
        time.sleep(0.1)
    assert "Traceback" not in web.log.read_text()


def test_gunicorn_stops_on_a_signal_and_leaves_nothing(start: Callable[..., Any], tmp_path: Path) -> None:
    web = start(AWAY, TMPDIR=str(tmp_path))
    web.request("GET", "/test")
    assert list(tmp_path.glob("web-metrics-*/*.db"))
    assert web.stop() == 0
    assert not list(tmp_path.iterdir())
    log = web.log.read_text()
    assert "Traceback" not in log
    assert "Exception ignored" not in log


def test_a_bad_setting_is_refused_in_one_sentence_before_anything_starts() -> None:
    command = [sys.executable, "-m", "gunicorn", "--config", "python:app.admission.gunicorn_conf"]
    command += ["--bind", f"127.0.0.1:{free_ports(1)[0]}", "app:create_app()"]
    shown = subprocess.run(
        command,
        env={**os.environ, "MAX_UPLOAD_MB": "lots"},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert shown.returncode != 0
    assert "MAX_UPLOAD_MB" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert "Booting worker" not in shown.stderr


def test_without_its_config_file_gunicorn_serves_the_app_too(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "--no-control-socket"]
    process = subprocess.Popen([*command, "app:create_app()"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.0 200")
                return
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(20)
