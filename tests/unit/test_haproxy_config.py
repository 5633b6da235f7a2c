"""HAProxy as it is configured, in front of nothing: what one address may hold of it."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.eventually import eventually
from support.haproxy import ABSENT, HAPROXY, Haproxy
from support.web_app import Site

pytestmark = pytest.mark.skipif(not HAPROXY, reason=ABSENT)


def answers(port: int, source: str) -> bool:
    with socket.create_connection(("127.0.0.1", port), 5, (source, 0)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(100).startswith(b"HTTP/1.1 404")


def test_silent_connections_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    proxy = Haproxy(tmp_path / "log")
    with ExitStack() as stack:
        proxy.start()
        stack.callback(proxy.stop)
        for _ in range(420):
            with suppress(ConnectionError):
                stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 5))
        figures = Site(int(proxy.metrics.rpartition(":")[2]))
        denied = r'^haproxy_frontend_denied_connections_total{proxy="web"} [1-9]'
        eventually(lambda: bool(re.search(denied, figures.request("GET", "/metrics").body.decode(), re.M)))
        assert answers(proxy.port, "127.0.0.2")
