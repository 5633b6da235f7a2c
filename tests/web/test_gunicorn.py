"""The app as a process: uploads, headers and log lines over a socket, its end, refusals to start."""

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
from support.eventually import eventually
from support.web_app import post_head

from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import http_ok

AWAY = "127.0.0.1:9"
SECRET = "a-key-that-nobody-may-read"


@pytest.fixture(scope="module")
def web(start: Callable[..., Any]) -> Any:
    """An app that needs no Triton for what is asked of it here."""
    return start(AWAY, MAX_UPLOAD_MB="1", WEB_CONCURRENCY="1")


@pytest.fixture(scope="module", params=["text", "json"])
def logging_web(start: Callable[..., Any], web: Any, request: pytest.FixtureRequest) -> Any:
    return web if request.param == "text" else start(AWAY, WEB_CONCURRENCY="1", LOG_FORMAT="json")


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
    with socket.create_connection(("127.0.0.1", web.port), timeout=60) as connection:
        connection.sendall(post_head(None if chunked else len(body)))
        if chunked:
            connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        else:
            connection.sendall(body)
        reply = answer(connection)
    assert reply.startswith(b"HTTP/1.1 413")
    assert b"upload_too_large" in reply


def test_a_refused_request_does_not_wait_for_the_rest_of_a_slow_body(web: Any) -> None:
    """Found: the body was read without a deadline, and held a thread as long as its sender liked."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as connection:
        connection.sendall(post_head(30_000_000) + b"--b")
        assert answer(connection).startswith(b"HTTP/1.1 413 ")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.parametrize("pause_s", [0.0, 0.005, 0.1], ids=["at once", "soon", "later"])
def test_a_kept_connection_answers_requests_sent_without_a_pause(web: Any, pause_s: float) -> None:
    request, body = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b'{"alive":true}\n'
    with socket.create_connection(("127.0.0.1", web.port), timeout=60) as connection:
        for at_once in (1, 1, 1, 3, 1):  # of three, two wait in gunicorn's buffer
            connection.sendall(request * at_once)
            replies = b""
            while replies.count(body) < at_once:
                replies += connection.recv(65536)
            assert replies.count(b"HTTP/1.1 200") == at_once
            time.sleep(pause_s)


@pytest.mark.parametrize("sent", [b"", PART + b"\xff\xd8"])
def test_a_client_that_disconnects_leaves_one_log_line(web: Any, sent: bytes) -> None:
    before = web.log.read_text()
    with socket.create_connection(("127.0.0.1", web.port)) as connection:
        connection.sendall(post_head(100_000) + sent)
    eventually(lambda: "POST" in web.log.read_text().removeprefix(before))
    assert web.request("GET", "/healthz").status == 200
    added = web.log.read_text().removeprefix(before)
    assert (added.count("POST /predict"), "Traceback" in added) == (1, False)


def ask(port: int, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.promise("SECURITY 7")
@pytest.mark.parametrize(
    "header",
    [
        *(b"SCRIPT_NAME: /x", b"SCRIPT_NAME: /healthz", b"Script_Name: /x", b"PATH_INFO: /lab"),
        *(b"REMOTE_ADDR: 6.6.6.6", b"X_FORWARDED_FOR: 6.6.6.6", b"X-Forwarded-For: 6.6.6.6"),
        *(b"X-Forwarded-Host: evil.example", b"X-Forwarded-Proto: https", b"X-Forwarded-Protocol: ssl"),
        *(b"X-Forwarded-Ssl: on\r\nX-Forwarded-Proto: http", b"X-Forwarded-Prefix: /x"),
        b"Forwarded: for=6.6.6.6;host=evil.example",
    ],
)
def test_headers_of_a_client_about_its_address_are_ignored(logging_web: Any, header: bytes) -> None:
    """SCRIPT_NAME alone made a 500 of any request, and other pages of the same address."""
    for path, status in ((b"/healthz", b"200"), (b"/api/docs", b"200"), (b"/x/healthz", b"404")):
        reply = ask(logging_web.port, b"GET %b HTTP/1.1\r\nHost: localhost:5000\r\n%b" % (path, header))
        assert reply.split()[1] == status, reply
        assert b"https://localhost:5000" not in reply  # the page names the address that it was asked for
        assert b"evil.example" not in reply
    assert "6.6.6.6" not in logging_web.log.read_text()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz?api_key=%b HTTP/1.1\r\nHost: localhost",
        b"GET /?api_key=%b HTTP/1.1\r\nHost: localhost",
        b"GET /none?a=b?c&api_key=%b HTTP/1.1\r\nHost: localhost",
        b"POST /predict?model=%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0",
        b"GET /?api_key=%b HTTP/1.1\r\nHost: evil.example",
        b"GET http://localhost/?api_key=%b HTTP/1.1\r\nHost: localhost",
        b"GET /?api_key=%b HTTP/9.9\r\nHost: localhost",
        b"GET /?api_key=%b\r\nHost: localhost",
        b"get /?api_key=%b HTTP/1.1\r\nHost: localhost",
        b"GET / HTTP/1.1\r\nX-API-Key %b",
        b"GET /?api_key=%b HTTP/1.1 \r\nHost: localhost",
        b"GET / HTTP/1.1\r\n(X-API-Key): %b",
        b"GET /?api_key=%b HTTP/1.1\r\nX-API-Key",
        b"GET / HTTP/1.1\r\nExpect: %b",
        b"GET /?api_key=%b HTTP/1.1\r\nTransfer-Encoding: what",
    ],
)
def test_queries_and_invalid_http_lines_stay_out_of_the_log(logging_web: Any, head: bytes) -> None:
    before = len(logging_web.log.read_text())
    assert ask(logging_web.port, head % SECRET.encode()).startswith(b"HTTP/1.1 ")
    ask(logging_web.port, b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: after")
    eventually(lambda: "after" in logging_web.log.read_text()[before:])
    log = logging_web.log.read_text()
    assert SECRET not in log
    if "{" not in log:  # the path is still there
        (line,) = (line for line in log[before:].splitlines() if line.endswith(" after"))
        assert line.startswith('127.0.0.1 "GET /nowhere HTTP/1.1" 404 ')


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
    command = [sys.executable, "-m", "gunicorn", "--config", "python:app.web.gunicorn_conf"]
    command += ["--bind", f"127.0.0.1:{free_ports(1)[0]}", "app:create_app()"]
    shown = subprocess.run(
        command,
        env={**os.environ, "MAX_UPLOAD_MB": "lots"},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=60,
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
        eventually(lambda: http_ok(f"http://127.0.0.1:{port}/metrics"))
    finally:
        process.terminate()
        process.wait(60)
