"""More than the app can do: most is refused at once and with a reason, and what is taken in is answered."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support.accounting import ANSWERED, REFUSED, SILENT, Account, KnownPhoto, PhotoLoad, learn
from support.eventually import eventually
from support.web_app import post_head

from gourmet.serving.preflight import free_ports

SAMPLES = Path(__file__).parents[1] / "drawings"
AT_WORK, WAITING, UPLOADS = 2, 4, 6


@pytest.fixture(scope="module")
def photos() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SAMPLES.glob("*.jpg"))]


@pytest.fixture(scope="module")
def web(start: Callable[..., Any], triton: Any) -> Any:
    """An app that takes in little, so that little is needed to be too much."""
    limits = {"MAX_AT_WORK": AT_WORK, "MAX_WAITING": WAITING, "MAX_UPLOADS": UPLOADS}
    return start(triton.http_url, WEB_CONCURRENCY="1", **{name: str(value) for name, value in limits.items()})


@pytest.fixture(scope="module")
def known(web: Any, photos: list[bytes]) -> list[KnownPhoto]:
    return learn(web.url, photos)


def overloaded(web: Any, known: list[KnownPhoto]) -> Account:
    """A burst of more than is answered, and what became of each photo."""
    before = web.measured("web_refusals_total")
    with PhotoLoad(web.url, known, per_s=300) as load:
        load.run_for(2)
        load.per_s = 2
        load.run_for(0.5)
        ended = time.monotonic()
        load.run_for(2)
    account = load.account()
    assert not account.lost
    assert set(account.reasons(REFUSED)) == {"503 overloaded"}
    assert account.count(REFUSED) > 20
    assert account.count(ANSWERED) > 20
    assert account.recovery_s(ended) == 0
    refusals = web.measured("web_refusals_total")
    assert sum(refusals.values()) - sum(before.values()) == account.count(REFUSED)
    assert refusals["line"] > before.get("line", 0)
    assert set(web.measured("web_photos_in_flight").values()) == {0.0}
    return account


@pytest.mark.slow
def test_too_much_is_refused_at_once_and_the_rest_answered(web: Any, known: list[KnownPhoto]) -> None:
    """How soon is the median of three turns: other tests share the two cores."""
    accounts = [overloaded(web, known) for _ in range(3)]
    refused_s = median(account.quantile_s(REFUSED, 0.95) for account in accounts)
    assert refused_s < median(account.quantile_s(ANSWERED, 0.5) for account in accounts)


def connected(web: Any, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", web.port), timeout=20, source_address=(source, 0))


def received(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_slow_uploads_hold_no_turn_and_more_of_them_than_allowed_are_refused(web: Any, sample: bytes) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(UPLOADS - 1):
            held.enter_context(connected(web, "127.0.0.2")).sendall(post_head(100_000) + b"--b")
        eventually(lambda: web.measured("web_photos_in_flight").get("upload") == UPLOADS - 1)
        with connected(web, "127.0.0.2") as another:  # which has its share, and leaves a place to others
            another.sendall(post_head(100_000) + b"--b")
            assert received(another).startswith(b"HTTP/1.1 503 ")
        assert web.predict(sample).status == 200
        held.enter_context(connected(web, "127.0.0.3")).sendall(post_head(100_000) + b"--b")
        eventually(lambda: web.measured("web_photos_in_flight").get("upload") == UPLOADS)
        refused = web.predict(sample)
        assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
        assert refused.seconds < 2
        assert web.request("GET", "/readyz").status == 200
    eventually(lambda: web.measured("web_photos_in_flight").get("upload") == 0)
    assert web.predict(sample).status == 200


def test_a_client_in_no_hurry_to_hang_up_keeps_nobody_waiting(web: Any) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(6):
            connection = held.enter_context(connected(web))
            connection.sendall(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
            assert connection.recv(100).startswith(b"HTTP/1.1 405")
        reply = web.request("GET", "/healthz")
    assert reply.status == 200
    assert reply.seconds < 1.5


def test_a_large_photo_that_is_refused_is_not_cut_off_before_its_sender_reads_why(
    web: Any, known: list[KnownPhoto]
) -> None:
    body = b"x" * 8_000_000
    with PhotoLoad(web.url, known, per_s=300) as load:
        load.run_until(lambda: load.account().count(REFUSED) > 10)
        refused, end = 0, time.monotonic() + 60
        while refused < 3 and time.monotonic() < end:
            with connected(web) as connection:
                connection.sendall(post_head(len(body)) + body)
                status, _, answer = received(connection).partition(b"\r\n")
            if status.split()[1] == b"503":
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
                refused += 1
            else:  # there was room for it just then: it is no form
                assert status.split()[1] in (b"400", b"413")
    assert refused == 3
    assert not load.account().lost


def test_being_told_to_stop_under_load_it_loses_nothing_that_it_took_in(
    start: Callable[..., Any], triton: Any, known: list[KnownPhoto]
) -> None:
    """On kept connections; on one for each request under `gourmet up`, below."""
    web = start(triton.http_url)
    with PhotoLoad(web.url, known, per_s=20, keeps_alive=True) as load:
        load.run_until(lambda: load.account().count(ANSWERED) > 20)
        web.process.send_signal(signal.SIGTERM)
        load.run_until(lambda: web.process.poll() is not None)
        load.run_for(0.2)
    assert web.process.returncode == 0
    account = load.account()
    assert account.count(ANSWERED) > 20
    assert not account.taken_in.lost
    assert set(account.reasons(REFUSED)) <= {"503 overloaded", "503 stopping"}


def test_gourmet_up_told_to_stop_under_load_loses_nothing_either(
    triton: Any, known: list[KnownPhoto]
) -> None:
    (port,) = free_ports(1)
    command = [str(Path(sys.executable).with_name("gourmet")), "up", "--web-only", "--port", str(port)]
    up = subprocess.Popen(
        command, env={**os.environ, "TRITON_SERVER_URL": triton.http_url}, stdout=subprocess.PIPE
    )
    try:
        assert up.stdout
        assert any(b"ready after" in line for line in up.stdout)
        with PhotoLoad(f"http://127.0.0.1:{port}", known, per_s=20) as load:
            load.run_until(lambda: load.account().count(ANSWERED) > 20)
            up.send_signal(signal.SIGTERM)
            load.run_until(lambda: up.poll() is not None)
    finally:
        up.terminate()
        up.communicate()
    assert up.returncode == 0
    account = load.account()
    assert not account.taken_in.lost
    assert account.count(SILENT) > 0
