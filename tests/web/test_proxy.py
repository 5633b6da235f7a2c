"""The containers' proxy, as Debian's nginx, in front of the real app."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import one_client
from support.eventually import eventually
from support.nginx import nginx
from support.tls import Certificates

from gourmet.serving.preflight import free_ports

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


def test_the_app_knows_who_asks_whatever_they_say_of_themselves(proxy: Any) -> None:
    with one_client.connect(proxy.port, "127.0.0.7") as connection:
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
def test_behind_an_ingress_controller_that_one_is_believed_who_asks_and_nobody_else(
    in_a_cluster: Any, source: str, visitor: str, scheme: str
) -> None:
    name = f"by-{source}"
    with one_client.connect(in_a_cluster.port, source) as connection:
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
    with one_client.connect(proxy.port, "127.0.0.7") as connection:
        connection.sendall(head + b"x" * 1_500_000)
        time.sleep(0.5)
        assert web.measured("web_photos_in_flight").get("upload", 0) == 0
        connection.sendall(b"x" * 500_000)
        reply = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert b'"request_id"' in reply  # from the app, which has no Triton


def test_one_address_has_some_large_uploads_and_not_all(proxy: Any) -> None:
    head = (
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )

    def status(source: str) -> bytes:
        with one_client.connect(proxy.port, source) as connection:
            connection.sendall(head + b"1\r\nx\r\n0\r\n\r\n")
            return connection.recv(100).split()[1]

    def refused() -> bool:
        with contextlib.ExitStack() as held:
            for _ in range(8):
                held.enter_context(one_client.connect(proxy.port, "127.0.0.7")).sendall(head + b"1\r\nx\r\n")
            return status("127.0.0.7") == b"503" and status("127.0.0.8") == b"400"

    # Held again each time: nginx may see who asks before the last that is held, and refuse that one.
    eventually(refused)


def test_slow_clients_end_at_the_proxy_and_pages_come_through_it(web: Any, proxy: Any) -> None:
    with attack_of_heads(proxy.port):
        for _ in range(4):
            assert proxy.request("GET", "/").status == 200
        assert proxy.request("GET", "/healthz").seconds < 1
    assert proxy.request("GET", "/metrics").status == 404
    assert web.request("GET", "/metrics").status == 200


def test_where_the_app_is_away_a_visitor_is_told_when_to_ask_again(web: Any, tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    with nginx(nobody, tmp_path) as alone:
        reply = replace(web, port=alone.port).request("GET", "/")
        assert (reply.status, reply.headers["retry-after"]) == (503, "2")


def test_with_a_certificate_nothing_is_answered_without_tls(web: Any, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    signed, key = certificates.sign("here", "IP:127.0.0.1")
    (place,) = free_ports(1)
    (tmp_path / "certificates").mkdir()
    shutil.copy(signed, tmp_path / "certificates" / "fullchain.pem")
    shutil.copy(key, tmp_path / "certificates" / "privkey.pem")
    config = (ROOT / "proxy" / "tls.conf").read_text().replace("/etc/nginx/", f"{tmp_path}/")
    (tmp_path / "server.d").mkdir()
    (tmp_path / "server.d" / "tls.conf").write_text(
        config.replace("listen 8443", f"listen 127.0.0.1:{place}")
    )
    with nginx(web.port, tmp_path, f":{place}") as plain:
        sent_on = replace(web, port=plain.port).request("POST", "/predict?a=b", b"x")
        assert (sent_on.status, sent_on.headers["location"]) == (
            308,
            f"https://127.0.0.1:{place}/predict?a=b",
        )
        trusted = ssl.create_default_context(cafile=certificates.ca)
        with urllib.request.urlopen(f"https://127.0.0.1:{place}/healthz", context=trusted) as answer:
            assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"


@contextlib.contextmanager
def attack_of_heads(port: int) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for _ in range(170):
            connection = held.enter_context(one_client.connect(port, "127.0.0.7"))
            connection.sendall(b"GET / HTTP/1.1\r\nHost")
        yield
