"""The containers' proxy, as Debian's nginx, in front of the real app."""

from __future__ import annotations

import contextlib
import json
import select
import shutil
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.eventually import eventually
from support.nginx import connect, nginx
from support.tls import Certificates

from gourmet.stack.preflight import free_ports

ROOT = Path(__file__).parents[2]
AWAY = "127.0.0.1:9"


@pytest.fixture(scope="module")
def web(start: Callable[..., Any]) -> Any:
    return start(AWAY, WEB_CONCURRENCY="1", TRUSTED_PROXIES="1")


@pytest.fixture(scope="module")
def proxy(web: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with nginx(web.port, tmp_path_factory.mktemp("nginx")) as started:
        yield replace(web, port=started.port)


@pytest.fixture(scope="module")
def in_a_cluster(web: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The same behind an ingress controller, which in a cluster has a private address."""
    folder = tmp_path_factory.mktemp("cluster")
    config = (ROOT / "deploy/kubernetes/components/behind/behind.conf").read_text()
    assert "set_real_ip_from 10.0.0.0/8" in config
    (folder / "server.d").mkdir()
    (folder / "server.d" / "behind.conf").write_text(config.replace("10.0.0.0/8", "127.0.0.7"))
    with nginx(web.port, folder) as started:
        yield replace(web, port=started.port)


def test_the_app_sees_the_client_address_despite_forged_headers(proxy: Any) -> None:
    with connect(proxy.port, "127.0.0.7") as connection:
        connection.sendall(
            b"GET /test HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 6.6.6.6\r\nX-Request-ID: who\r\n"
            b"Connection: close\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 503 ")  # there is no Triton
    eventually(lambda: " who\n" in proxy.log.read_text())
    (line,) = (line for line in proxy.log.read_text().splitlines() if line.endswith(" who"))
    assert "127.0.0.7" in line
    assert "6.6.6.6" not in line


@pytest.mark.parametrize(
    ("source", "visitor", "scheme"), [("127.0.0.7", "6.6.6.6", "https"), ("127.0.0.8", "127.0.0.8", "http")]
)
def test_only_the_trusted_ingress_controller_may_name_the_client_address(
    in_a_cluster: Any, source: str, visitor: str, scheme: str
) -> None:
    name = f"by-{source}"
    with connect(in_a_cluster.port, source) as connection:
        connection.sendall(
            b"GET /api/docs HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 5.5.5.5, 6.6.6.6\r\n"
            b"X-Forwarded-Proto: https\r\nX-Request-ID: " + name.encode() + b"\r\nConnection: close\r\n\r\n"
        )
        page = b"".join(iter(lambda: connection.recv(65_536), b""))
    eventually(lambda: f" {name}\n" in in_a_cluster.log.read_text())
    (line,) = (line for line in in_a_cluster.log.read_text().splitlines() if line.endswith(f" {name}"))
    assert line.startswith(f"{visitor} ")
    assert f"{scheme}://localhost/api/v1".encode() in page


def test_an_upload_reaches_the_app_when_it_is_whole(web: Any, proxy: Any) -> None:
    head = (
        b"POST /api/v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        b"Connection: close\r\nContent-Length: 2000000\r\n\r\n"
    )
    with connect(proxy.port, "127.0.0.7") as connection:
        connection.sendall(head + b"x" * 1_500_000)
        time.sleep(0.2)
        assert proxy.request("GET", "/healthz").status == 200
        assert web.measured("web_photos_in_flight").get("upload", 0) == 0
        connection.sendall(b"x" * 500_000)
        reply = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert b'"request_id"' in reply  # from the app, which has no Triton


def post(length: int | None) -> bytes:
    sized = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n{sized}\r\n\r\n"
    ).encode()


def status(port: int, source: str, request: bytes) -> int:
    with connect(port, source) as connection:
        connection.sendall(request)
        return int(connection.recv(100).split()[1])


def is_ended(connection: socket.socket) -> bool:
    """Return True if nginx closed the connection or refused its request."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP | select.POLLIN)
    events = poll.poll(0)
    if not events or events[0][1] & select.POLLRDHUP:
        return bool(events)
    try:
        received = connection.recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except ConnectionResetError:
        return True
    return received == b"" or received.startswith(b"HTTP/1.1 4")


@pytest.fixture(scope="module")
def impatient(web: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The same with two seconds in place of ten."""
    with nginx(web.port, tmp_path_factory.mktemp("impatient"), timeout="2s") as started:
        yield replace(web, port=started.port)


ATTACKER, VISITOR = "127.0.0.7", "127.0.0.8"
GET = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
PAGE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.promise("SECURITY 6")
@pytest.mark.parametrize(
    ("begin", "drip", "connections"),
    [
        (b"", b"", 300),
        (b"GET / HTTP/1.1\r\nHost", b"", 300),
        (b"GET / HTTP/1.1\r\nHost", b"x", 300),
        (post(100_000) + b"x", b"", 60),
        (post(None) + b"1\r\nx\r\n", b"", 8),
        (PAGE * 3 + GET[:20], b"", 60),
    ],
    ids=["silent", "half a head", "dripping heads", "half a body", "body without end", "half a next head"],
)
def test_slow_and_silent_clients_are_disconnected_and_others_answered(
    impatient: Any, begin: bytes, drip: bytes, connections: int
) -> None:
    with contextlib.ExitStack() as held:
        attack = [held.enter_context(connect(impatient.port, ATTACKER)) for _ in range(connections)]
        for connection in attack:
            connection.sendall(begin)
        for _ in range(4):
            assert status(impatient.port, VISITOR, PAGE) == 200

        def all_ended() -> bool:
            for connection in attack:
                with contextlib.suppress(OSError):
                    if (
                        connection.recv(1_000_000, socket.MSG_DONTWAIT | socket.MSG_PEEK)[:12]
                        == b"HTTP/1.1 200"
                    ):
                        connection.recv(1_000_000)
                with contextlib.suppress(OSError):
                    connection.sendall(drip)
            return all(map(is_ended, attack))

        eventually(all_ended)
    assert status(impatient.port, VISITOR, PAGE) == 200


@pytest.mark.slow
def test_responses_that_no_client_reads_are_dropped_and_others_answered(impatient: Any) -> None:
    with contextlib.ExitStack() as held:
        attack = [
            held.enter_context(connect(impatient.port, ATTACKER, receive_buffer=4096)) for _ in range(40)
        ]
        for connection in attack:
            connection.sendall(PAGE * 200)
        for _ in range(4):
            assert status(impatient.port, VISITOR, PAGE) == 200
        eventually(lambda: all(map(is_reset, attack)), 60)
    assert status(impatient.port, VISITOR, PAGE) == 200


def is_reset(connection: socket.socket) -> bool:
    """Return True if nginx reset the connection; nothing is read from it."""
    poll = select.poll()
    poll.register(connection, select.POLLERR | select.POLLHUP)
    return bool(poll.poll(0))


@pytest.mark.promise("operating: slow heads or bodies, silent connections, floods")
def test_one_address_may_have_500_requests_at_once_and_others_are_answered(proxy: Any) -> None:
    def refused() -> bool:
        with contextlib.ExitStack() as held:
            attack = [held.enter_context(connect(proxy.port, ATTACKER)) for _ in range(500)]
            for connection in attack:
                connection.sendall(post(1000) + b"x")
            with connect(proxy.port, ATTACKER) as connection:
                connection.sendall(PAGE)
                reply = connection.recv(1000)
            if not reply.startswith(b"HTTP/1.1 429 ") or any(map(is_ended, attack)):
                return False
            assert b"\r\nRetry-After: 2\r\n" in reply
            assert b'{"error":{"code":"too_many_requests",' in reply
            return status(proxy.port, VISITOR, PAGE) == 200

    # Held again each time: nginx may see the last request before all that are held, and refuse one of them.
    eventually(refused)


CHUNKED = post(None) + b"1\r\nx\r\n0\r\n\r\n"
PHONE_PHOTO = post(2_000_000) + bytes(2_000_000)


@pytest.mark.parametrize(
    ("begun", "allowed", "next_one"),
    [
        (CHUNKED[:-5], 8, CHUNKED),
        (post(33_000_000) + b"x", 8, CHUNKED),
        (post(33_000_000).replace(b"POST", b"GET") + b"x", 8, CHUNKED),
        (PHONE_PHOTO[:-1], 64, PHONE_PHOTO),
    ],
    ids=["without a length", "large", "large GET", "photos of a phone"],
)
def test_one_address_may_have_a_few_large_uploads_at_once_and_others_are_answered(
    proxy: Any, begun: bytes, allowed: int, next_one: bytes
) -> None:
    def refused() -> bool:
        with contextlib.ExitStack() as held:
            attack = [held.enter_context(connect(proxy.port, ATTACKER)) for _ in range(allowed)]
            for connection in attack:
                connection.sendall(begun)
            if status(proxy.port, ATTACKER, next_one) != 429 or any(map(is_ended, attack)):
                return False
            return status(proxy.port, VISITOR, next_one) == 400

    eventually(refused)


def test_a_body_that_is_too_large_is_refused_with_and_without_a_length(proxy: Any) -> None:
    assert status(proxy.port, ATTACKER, post(40_000_000)) == 413
    with connect(proxy.port, ATTACKER) as connection:
        connection.sendall(post(None))
        with contextlib.suppress(OSError):
            for _ in range(40):
                connection.sendall(b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n")
        assert connection.recv(100).split()[1] == b"413"
    assert status(proxy.port, VISITOR, PAGE) == 200


def test_metrics_are_refused_to_visitors(web: Any, proxy: Any) -> None:
    assert proxy.request("GET", "/metrics").status == 404
    assert web.request("GET", "/metrics").status == 200


def test_what_nginx_answers_itself_is_json_and_its_log_has_no_query(web: Any, tmp_path: Path) -> None:
    def code(port: int, body: bytes) -> tuple[int, str, str | None]:
        reply = replace(web, port=port).request("POST", "/api/v1/classify?api_key=SECRET", body)
        return reply.status, json.loads(reply.body)["error"]["code"], reply.headers.get("retry-after")

    photo = bytes(2_000_000)
    with nginx(web.port, tmp_path) as proxy:
        assert code(proxy.port, photo)[0] == 400  # from the app
        assert code(proxy.port, bytes(35_000_000)) == (413, "upload_too_large", None)
        shutil.rmtree(tmp_path / "body")  # as if there were no space for bodies
        assert code(proxy.port, photo) == (503, "nobody_there", "2")
    (nobody,) = free_ports(1)
    with nginx(nobody, tmp_path) as alone:
        assert code(alone.port, photo) == (503, "nobody_there", "2")
        assert replace(web, port=alone.port).request("GET", "/").status == 503
    log = (tmp_path / "log").read_text()
    assert log.count(" 503 ") == 3
    assert " 400 " not in log, "the app has logged it"
    assert "SECRET" not in log


def test_with_a_certificate_requests_without_tls_are_redirected(web: Any, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    signed, key = certificates.sign("here", "IP:127.0.0.1")
    (port,) = free_ports(1)
    (tmp_path / "certificates").mkdir()
    shutil.copy(signed, tmp_path / "certificates" / "fullchain.pem")
    shutil.copy(key, tmp_path / "certificates" / "privkey.pem")
    config = (ROOT / "proxy" / "tls.conf").read_text().replace("/etc/nginx/", f"{tmp_path}/")
    (tmp_path / "server.d").mkdir()
    (tmp_path / "server.d" / "tls.conf").write_text(config.replace("listen 8443", f"listen 127.0.0.1:{port}"))
    with nginx(web.port, tmp_path, f":{port}") as plain:
        sent_on = replace(web, port=plain.port).request("POST", "/predict?a=b", b"x")
        assert (sent_on.status, sent_on.headers["location"]) == (
            308,
            f"https://127.0.0.1:{port}/predict?a=b",
        )
        trusted = ssl.create_default_context(cafile=certificates.ca)
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/healthz", context=trusted) as answer:
            assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
