"""Headers and request lines of a client on loopback: what gunicorn trusts and logs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from support.eventually import eventually
from support.web_app import StartWeb

AWAY = "127.0.0.1:9"
SECRET = "a-key-that-nobody-may-read"


@pytest.fixture(scope="module", params=["text", "json"])
def web(start: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    return start(AWAY, WEB_CONCURRENCY="1", LOG_FORMAT=request.param)


def ask(port: int, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize(
    "header",
    [
        *(
            b"SCRIPT_NAME: /x",
            b"SCRIPT_NAME: /healthz",
            b"Script_Name: /x",
            b"PATH_INFO: /lab",
            b"REMOTE_ADDR: 6.6.6.6",
        ),
        *(b"X_FORWARDED_FOR: 6.6.6.6", b"X-Forwarded-For: 6.6.6.6", b"X-Forwarded-Host: evil.example"),
        *(b"X-Forwarded-Proto: https", b"X-Forwarded-Ssl: on\r\nX-Forwarded-Proto: http"),
        *(
            b"X-Forwarded-Protocol: ssl",
            b"X-Forwarded-Prefix: /x",
            b"Forwarded: for=6.6.6.6;host=evil.example",
        ),
    ],
)
def test_headers_of_a_client_about_its_address_are_ignored(web: Any, header: bytes) -> None:
    """SCRIPT_NAME alone made a 500 of any request, and other pages of the same address."""
    for path, status in ((b"/healthz", b"200"), (b"/api/docs", b"200"), (b"/x/healthz", b"404")):
        reply = ask(web.port, b"GET %b HTTP/1.1\r\nHost: localhost:5000\r\n%b" % (path, header))
        assert reply.split()[1] == status, reply
        assert b"https://localhost:5000" not in reply  # the page names the address that it was asked for
        assert b"evil.example" not in reply
    assert "6.6.6.6" not in web.log.read_text()


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
        b"GET /?api_key=%b HTTP/1.1 \r\nHost: localhost",
        b"GET / HTTP/1.1\r\nX-API-Key %b",
        b"GET /?api_key=%b HTTP/1.1\r\nX-API-Key",
        b"GET / HTTP/1.1\r\n(X-API-Key): %b",
        b"GET / HTTP/1.1\r\nExpect: %b",
        b"GET /?api_key=%b HTTP/1.1\r\nTransfer-Encoding: what",
    ],
)
def test_queries_and_invalid_http_lines_stay_out_of_the_log(web: Any, head: bytes) -> None:
    before = len(web.log.read_text())
    assert ask(web.port, head % SECRET.encode()).startswith(b"HTTP/1.1 ")
    ask(web.port, b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: after")
    eventually(lambda: "after" in web.log.read_text()[before:])
    assert SECRET not in web.log.read_text()


def test_a_log_line_still_has_the_requested_path(start: StartWeb) -> None:
    web = start(AWAY, WEB_CONCURRENCY="1")
    web.request("GET", "/nowhere?a=b", X_Request_ID="mine")
    eventually(lambda: " mine\n" in web.log.read_text())
    (line,) = (line for line in web.log.read_text().splitlines() if line.endswith(" mine"))
    assert line.startswith('127.0.0.1 "GET /nowhere HTTP/1.1" 404 ')
