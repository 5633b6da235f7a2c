"""One address does its worst with connections; another's requests are answered as if it were not there."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from support import one_client
from support.one_client import THEM, attacked

AWAY = "127.0.0.1:9"


@pytest.fixture(scope="module")
def web(start: Callable[..., Any]) -> Any:
    """An app that needs no Triton for what is asked of it here, and has one process."""
    return start(AWAY, WEB_CONCURRENCY="1", MAX_AT_WORK="8")


@pytest.mark.parametrize("kind", sorted(one_client.KINDS))
def test_others_are_answered(web: Any, sample: bytes, kind: str) -> None:
    with attacked(web.port, kind):
        # The first is accepted after all that the attacker opened at once.
        for most_s in (5, *[1] * 11):
            healthy = web.request("GET", "/healthz")
            assert (healthy.status, healthy.seconds < most_s) == (200, True)
            asked = web.predict(sample)
            assert asked.json["error"]["code"] == "triton_unavailable"
            assert asked.seconds < 2
            time.sleep(0.25)


def received(connection: socket.socket) -> bytes:
    """An answer of /healthz, whose head and body may come one after the other."""
    reply = b""
    while not reply.endswith(b"}\n") and (more := connection.recv(65_536)):
        reply += more
    return reply


def test_who_floods_loses_its_own_oldest_connections_and_nobody_elses(web: Any) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with one_client.connect(web.port, "127.0.0.1") as kept, one_client.connect(web.port, THEM) as first:
        for pause_s in (0.0, 2.0):
            with attacked(web.port, "silence"):
                time.sleep(pause_s)
                kept.sendall(asked)
                assert received(kept).endswith(b'{"alive":true}\n')
        assert first.recv(100) == b""


def test_half_a_request_after_a_whole_one_holds_no_thread(web: Any) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(one_client.connect(web.port, THEM)) for _ in range(120)]
        for connection in connections:
            connection.sendall(asked + asked[:20])
        for connection in connections:
            assert received(connection).startswith(b"HTTP/1.1 200 ")
        assert web.request("GET", "/healthz").seconds < 1
        for connection in connections:
            connection.sendall(asked[20:])
            assert received(connection).startswith(b"HTTP/1.1 200 ")
