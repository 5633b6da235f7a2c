"""More photos than the app can do: most are refused with a reason, and what is taken in is answered."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.accounting import ANSWERED, REFUSED, KnownPhoto, PhotoLoad, learn
from support.eventually import eventually
from support.proxy import Proxy
from support.web_app import post_head

PHOTOS = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "drawings").glob("*.jpg"))]
AT_WORK, WAITING = 2, 4
# Of the test at night, which asks for so many times as much as can be done.
TIMES = 5
SECONDS = 60


@pytest.fixture(scope="module")
def web(start: Callable[..., Any], triton: Any) -> Any:
    """An app that takes in little, so that little is needed to be too much."""
    limits = {"MAX_AT_WORK": AT_WORK, "MAX_WAITING": WAITING}
    return start(triton.http_url, WEB_CONCURRENCY="1", **{name: str(value) for name, value in limits.items()})


@pytest.fixture(scope="module")
def known(web: Any) -> list[KnownPhoto]:
    return learn(web.url, PHOTOS)


@pytest.mark.promise("operating: more requests than capacity")
@pytest.mark.slow
def test_requests_beyond_capacity_are_refused_and_the_others_answered(
    web: Any, known: list[KnownPhoto]
) -> None:
    before = web.measured("web_refusals_total")
    with PhotoLoad(web.url, known, at_once=4 * (AT_WORK + WAITING)) as load:
        eventually(lambda: all(load.account().count(outcome) > 20 for outcome in (ANSWERED, REFUSED)))
    account = load.account()
    assert not account.lost
    assert set(account.reasons(REFUSED)) == {"503 overloaded"}
    assert web.predict(known[0].data).status == 200
    refusals = web.measured("web_refusals_total")
    assert sum(refusals.values()) - sum(before.values()) == account.count(REFUSED)
    assert refusals["line"] > before.get("line", 0)
    assert set(web.measured("web_photos_in_flight").values()) == {0.0}


def connected(web: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", web.port), timeout=60)


def test_a_large_photo_beyond_a_full_queue_is_not_cut_off_before_its_sender_reads_why(
    web: Any, sample: bytes
) -> None:
    with contextlib.ExitStack() as held:

        def begin() -> socket.socket:
            connection = held.enter_context(connected(web))
            connection.sendall(post_head(100_000) + b"--b")
            return connection

        for _ in range(AT_WORK):
            begin()
        eventually(lambda: web.measured("web_photos_in_flight").get("upload") == AT_WORK)
        for _ in range(WAITING):
            begin()
        eventually(lambda: web.measured("web_photos_in_flight").get("waiting") == WAITING)
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


@pytest.mark.promise("operating: the web app receives SIGTERM under load")
def test_a_stopped_web_app_answers_the_request_under_way(
    start: Callable[..., Any], triton: Any, sample: bytes
) -> None:
    with Proxy(triton.http_url) as proxy, ThreadPoolExecutor(1) as pool:
        web = start(proxy.address, WEB_CONCURRENCY="1")
        proxy.passes.clear()
        pending = pool.submit(web.predict, sample)
        eventually(lambda: web.measured("web_photos_in_flight").get("work") == 1)
        web.process.send_signal(signal.SIGTERM)
        proxy.passes.set()
        assert pending.result().status == 200
        assert web.stop() == 0


def memory_mib(app: Any) -> float:
    root = psutil.Process(app.process.pid)
    return sum(process.memory_full_info().uss for process in (root, *root.children(recursive=True))) / 2**20


@pytest.mark.nightly
def test_photos_beyond_the_capacity_cost_no_memory_and_the_app_recovers(
    start: Callable[..., Any], triton: Any
) -> None:
    web = start(triton.http_url, MAX_WAITING="16", MAX_WAIT_S="5")
    photos = learn(web.url, PHOTOS)
    with PhotoLoad(web.url, photos, at_once=24) as load:
        time.sleep(SECONDS / 4)
    capacity = load.account().answered_per_s()
    with PhotoLoad(web.url, photos, capacity * TIMES) as load:
        begin = time.monotonic()
        time.sleep(SECONDS / 2)
        early_mib = memory_mib(web)
        time.sleep(SECONDS / 2)
        late_mib, ended = memory_mib(web), time.monotonic()
        load.go_on_with(capacity / 4)
        time.sleep(SECONDS / 4)
    account = load.account()
    overload = account.between(begin, ended)
    assert not account.lost
    assert set(overload.reasons(REFUSED)) == {"503 overloaded"}
    assert overload.p95_s() <= 5 + 10, "the longest wait, and the deadline"
    assert late_mib <= early_mib * 1.05 + 5
    assert account.recovery_s(ended) <= 10
