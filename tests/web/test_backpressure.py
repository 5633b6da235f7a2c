"""More than the app can do: most is refused at once and with a reason, and what is taken in is answered."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.accounting import ANSWERED, REFUSED, SILENT, Account, KnownPhoto, PhotoLoad, learn
from support.eventually import eventually
from support.web_app import post_head

from gourmet.serving.preflight import free_ports

SAMPLES = Path(__file__).parents[1] / "drawings"
AT_WORK, WAITING = 2, 4


@pytest.fixture(scope="module")
def photos() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SAMPLES.glob("*.jpg"))]


@pytest.fixture(scope="module")
def web(start: Callable[..., Any], triton: Any) -> Any:
    """An app that takes in little, so that little is needed to be too much."""
    limits = {"MAX_AT_WORK": AT_WORK, "MAX_WAITING": WAITING}
    return start(triton.http_url, WEB_CONCURRENCY="1", **{name: str(value) for name, value in limits.items()})


@pytest.fixture(scope="module")
def known(web: Any, photos: list[bytes]) -> list[KnownPhoto]:
    return learn(web.url, photos)


@pytest.mark.slow
def test_requests_beyond_capacity_are_refused_and_the_others_answered(
    web: Any, known: list[KnownPhoto]
) -> None:
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


def connected(web: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", web.port), timeout=20)


def test_a_client_with_slow_uploads_leaves_half_of_the_waiting_places_to_others(
    web: Any, sample: bytes
) -> None:
    """And a large photo that is refused meanwhile is not cut off before its sender reads why."""
    with contextlib.ExitStack() as held:

        def begin() -> socket.socket:
            connection = held.enter_context(connected(web))
            connection.sendall(post_head(100_000) + b"--b")
            return connection

        for _ in range(AT_WORK):
            begin()
        eventually(lambda: web.measured("web_photos_in_flight").get("upload") == AT_WORK)
        for _ in range(WAITING // 2):
            begin()
        eventually(lambda: web.measured("web_photos_in_flight").get("waiting") == WAITING // 2)
        large = b"x" * 8_000_000
        with connected(web) as connection:
            connection.sendall(post_head(len(large)) + large)
            refused = b""
            while b'"request_id"' not in refused and (piece := connection.recv(65_536)):
                refused += piece
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"overloaded"' in refused
        assert web.request("GET", "/readyz").status == 200
    eventually(lambda: web.predict(sample).status == 200)  # once the closed connections are noticed


def test_a_stop_under_load_loses_no_accepted_request(
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
    assert set(account.reasons(REFUSED)) <= {"503 overloaded"}


def test_stopping_gourmet_up_under_load_loses_no_request(triton: Any, known: list[KnownPhoto]) -> None:
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
            signalled = time.monotonic()
            up.send_signal(signal.SIGTERM)
            load.run_until(lambda: up.poll() is not None)
    finally:
        up.terminate()
        up.communicate()
    assert up.returncode == 0
    account = load.account()
    # gunicorn resets connections that no worker has accepted, which may be some of the last.
    assert not Account(tuple(a for a in account.attempts if a.sent < signalled - 1)).lost
    assert account.count(SILENT) > 0
