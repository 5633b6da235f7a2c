"""A worker that is killed while it looks at photos: who sent them is told so, and nothing is left of it."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from hard.proxy import Proxy
from web.conftest import WebApp, form

from gourmet.serving.waiting import wait_until

MODEL = "food_classifier_onnx"
PAGE = "text/html,application/xhtml+xml"


@pytest.fixture
def web(start: Callable[..., Any], triton: Any) -> Iterator[WebApp]:
    """An app whose one worker waits for a Triton that takes its time."""
    with Proxy(triton.http_url) as proxy:
        app = start(proxy.address, FOOD11_MODEL_NAME=MODEL, WEB_CONCURRENCY="1")
        wait_until(lambda: app.request("GET", "/readyz").status == 200, 30, "not ready")
        proxy.delay_s = 3.0
        yield app
        app.stop()


def kill_the_worker(web: WebApp, photos: int, stage: str) -> None:
    """Once it has so many there."""
    there = f"{photos} photos at the stage {stage!r}"
    wait_until(lambda: web.measured("web_photos_in_flight").get(stage) == photos, 30, f"never {there}")
    (worker,) = psutil.Process(web.process.pid).children()
    worker.kill()


@pytest.mark.parametrize(
    ("accept", "kind", "said"),
    [
        ("application/json", "application/json", b'"code":"interrupted"'),
        (PAGE, "text/html; charset=utf-8", b"</html>"),
        ("*/*", "text/html; charset=utf-8", b'<div class="problem" data-code="interrupted">'),
    ],
    ids=["program", "browser", "curl"],
)
def test_everybody_whose_photo_it_had_is_told_to_send_it_again(
    web: WebApp, sample: bytes, accept: str, kind: str, said: bytes
) -> None:
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(web.predict, sample, accept, X_Request_ID=name) for name in ("0", "503", "a" * 64)
        ]
        kill_the_worker(web, 3, "work")
        replies = [each.result() for each in asked]
    for reply in replies:
        assert reply.status == 503
        assert reply.headers["content-type"] == kind
        assert reply.headers["retry-after"] == "2"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert said in reply.body.replace(b": ", b":")
        assert reply.headers["x-request-id"].encode() in reply.body
    assert [reply.headers["x-request-id"] for reply in replies] == ["0", "503", "a" * 64]
    says = "was killed; requests that were told to come again: 3"
    wait_until(lambda: says in web.log.read_text(), 10, "the log does not say it")
    wait_until(lambda: web.measured("web_errors_total") == {"interrupted": 3}, 30, "not counted")


def test_who_is_still_sending_reads_it_too(web: WebApp, sample: bytes) -> None:
    body, headers = form(sample + bytes(8_000_000))
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as connection:
        connection.sendall(head.encode() + b"\r\n" + body[:1_000_000])
        kill_the_worker(web, 1, "upload")
        connection.sendall(body[1_000_000:5_000_000])
        assert b'"interrupted"' in connection.recv(65_536)


def test_a_request_that_was_not_read_yet_is_answered_under_its_id(web: WebApp) -> None:
    (worker,) = psutil.Process(web.process.pid).children()
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as connection:
        ours = connection.getsockname()
        wait_until(
            lambda: any(each.raddr == ours for each in worker.net_connections("tcp")), 20, "not accepted"
        )
        worker.suspend()
        connection.sendall(b"GET /api/v1/models HTTP/1.1\r\nHost: x\r\nX-Request-ID: mine\r\n\r\n")
        worker.kill()
        said = connection.recv(65_536)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nX-Request-ID: mine\r\n" in said
    assert said.endswith(b'"request_id":"mine"}}\n')


def test_who_is_at_work_for_longer_than_the_time_to_stop_is_told_so(
    start: Callable[..., Any], triton: Any, sample: bytes
) -> None:
    with Proxy(triton.http_url) as proxy, ThreadPoolExecutor(1) as pool:
        web = start(proxy.address, FOOD11_MODEL_NAME=MODEL, GUNICORN_CMD_ARGS="--graceful-timeout 1")
        wait_until(lambda: web.request("GET", "/readyz").status == 200, 30, "not ready")
        proxy.delay_s = 8.0
        asked = pool.submit(web.predict, sample)
        wait_until(lambda: web.measured("web_photos_in_flight").get("work") == 1, 30, "not at work")
        assert web.stop() == 0
        assert asked.result().json["error"]["code"] == "interrupted"


def test_a_worker_and_its_survivor_end_together(web: WebApp, sample: bytes) -> None:
    (worker,) = psutil.Process(web.process.pid).children()
    (survivor,) = worker.children()
    assert Path(f"/proc/{survivor.pid}/comm").read_text().strip() == "web survivor"
    assert not survivor.net_connections("tcp")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        survivor.send_signal(number)
    assert survivor.is_running()
    worker.kill()
    survivor.wait(20)
    wait_until(lambda: web.request("GET", "/healthz").status == 200, 30, "no other worker was started")
    (_, other) = psutil.Process(web.process.pid).children(recursive=True)
    assert web.stop() == 0
    assert not psutil.pid_exists(other.pid)
    assert "told to come again" not in web.log.read_text()


def test_photos_are_answered_also_where_the_survivor_was_killed(
    start: Callable[..., Any], triton: Any, sample: bytes
) -> None:
    web = start(triton.http_url, FOOD11_MODEL_NAME=MODEL, WEB_CONCURRENCY="1")
    (worker,) = psutil.Process(web.process.pid).children()
    worker.children()[0].kill()
    with ThreadPoolExecutor(3) as pool:
        assert {reply.status for reply in pool.map(web.predict, [sample] * 3)} == {200}
    web.stop()


@pytest.mark.parametrize("idle", [0, 1, 2])  # another one of a request's three messages is too many
def test_a_survivor_that_hangs_keeps_nobody_waiting_for_long(start: Callable[..., Any], idle: int) -> None:
    web = start("127.0.0.1:9", WEB_CONCURRENCY="1")
    (worker,) = psutil.Process(web.process.pid).children()
    (survivor,) = worker.children()
    survivor.suspend()
    with contextlib.ExitStack() as open_now:
        for _ in range(idle):
            open_now.enter_context(socket.create_connection(("127.0.0.1", web.port)))
        replies = [web.request("GET", "/healthz") for _ in range(400)]  # more than the channel takes
    assert {reply.status for reply in replies} == {200}
    assert max(reply.seconds for reply in replies) < 10
    assert survivor.status() == psutil.STATUS_ZOMBIE  # ended by its worker
    assert "the survivor did not listen" in web.log.read_text()
    assert web.stop() == 0


def test_a_survivor_that_hangs_is_left_neither_waited_for_nor_behind(start: Callable[..., Any]) -> None:
    web = start("127.0.0.1:9", WEB_CONCURRENCY="1")
    (worker,) = psutil.Process(web.process.pid).children()
    (survivor,) = worker.children()
    survivor.suspend()
    began = time.monotonic()
    assert web.stop() == 0
    assert time.monotonic() - began < 4  # of the five seconds after which gunicorn kills its worker
    assert not psutil.pid_exists(survivor.pid)
