"""Thousands of hostile requests to the real app in front of a real Triton, between honest ones."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from hard import hostile
from hard.accounting import ANSWERED, Photo, judge, learn
from hard.exchange import Answer, _whole
from hard.table import Row

from gourmet.systems.food11.drawn_photos import photos

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "4000"))
# A photo whose answer is known goes between every few hostile requests, on another connection.
HONEST_EVERY = 8
# A body of no stated length counts as the largest that may be: so few are never too much for one worker.
THREADS = 3


def send(url: str, wire: bytes, seconds: float = 60) -> Answer | None:
    """What comes back for bytes sent as they are; nothing where the connection was closed instead."""
    parts = urlsplit(url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as connection:
        try:
            connection.sendall(wire)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was all sent; what was said is read all the same
        try:
            while chunk := connection.recv(65_536):
                received += chunk
        except ConnectionResetError:
            pass
    while received.startswith(b"HTTP/1.1 100 "):  # go on, and the answer follows
        received = received.partition(b"\r\n\r\n")[2]
    head, found, body = received.partition(b"\r\n\r\n")
    if found and b"chunked" in head.lower():  # a heat map's lines
        return Answer(int(head.split()[1]), {}, body)
    return _whole(received)


def honest(url: str, photo: Photo, name: str) -> str:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="p"\r\n\r\n'
        + photo.data
        + b"\r\n--b--\r\n"
    )
    head = (
        f"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: application/json\r\n"
        f"X-Request-ID: {name}\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    answer = send(url, head.encode() + body)
    assert answer, "an honest request got no answer"
    outcome, reason = judge(answer, photo, name)
    return "answered rightly" if outcome == ANSWERED else f"HONEST {outcome}: {reason}"


def outcome(url: str, number: int, known: list[Photo]) -> tuple[str, str]:
    """What became of a hostile request, and what it was."""
    if number % HONEST_EVERY == 0:
        return honest(url, known[number % len(known)], f"honest-{number}"), "honest"
    what, wire = hostile.request(number)
    answer = send(url, wire)
    if answer is None:
        return "no answer", what
    if answer.status == HTTPStatus.NOT_IMPLEMENTED and b"Unsupported transfer coding" in answer.body:
        return "501", what  # what HTTP asks for
    if answer.status >= 500:
        return f"{answer.status}: {answer.body[:200]!r}", what
    named = answer.headers.get("x-request-id")
    if named not in (None, f"fuzz-{number}") and len(named) != 32:  # 32: made by the app
        return f"WRONG ID {named}", what
    return str(answer.status), what


def attack(url: str, numbers: range) -> tuple[Counter[str], dict[str, str]]:
    """Send all of these, several at a time; the counts, and an example of each."""
    known = learn(url, photos(6, width=200, height=150, seed=11))
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda number: outcome(url, number, known), numbers))
    return Counter(result for result, _ in found), dict(found)


def bad(results: Counter[str]) -> dict[str, int]:
    fine = {str(status.value) for status in HTTPStatus if 200 <= status < 500}
    fine |= {"501", "answered rightly", "no answer"}
    return {result: count for result, count in results.items() if result not in fine}


@pytest.mark.timeout(3600)
def test_hostile_requests(start: Callable[..., Any], triton: Any, table: Callable[[Row], Row]) -> None:
    web = start(triton.http_url, UPLOAD_DEADLINE_S="20")
    workers = {child.pid for child in psutil.Process(web.process.pid).children()}
    results, examples = attack(web.url, range(REQUESTS))
    broken = bad(results)
    survived = {child.pid for child in psutil.Process(web.process.pid).children()} == workers
    hard = web.request("GET", "/readyz").status == 200
    table(
        Row(
            tried="hostile requests to the web app, honest ones between them",
            times=1,
            requests=REQUESTS,
            answered=results["200"] + results["answered rightly"],
            refused={key: results[key] for key in results if key[0] in "45" and key not in broken},
            wrong=broken,
            silent={"closed without an answer": results["no answer"]} if results["no answer"] else {},
            recovery_s=None,
            seen="a status below 500 with the reason, or the answer; honest photos are answered rightly",
            survived=not broken and survived and hard,
        )
    )
    assert broken == {}, {why: examples[why] for why in broken}
    assert survived, "a worker of gunicorn died"
    assert hard
    assert results["no answer"] == 0, examples["no answer"]


def test_slow_bodies_hold_a_thread_no_longer_than_allowed(start: Callable[..., Any], triton: Any) -> None:
    """A client that sends a byte now and then is cut off, and others are answered meanwhile."""

    web = start(triton.http_url, UPLOAD_DEADLINE_S="3")
    known = learn(web.url, photos(6, width=200, height=150, seed=11))
    parts = urlsplit(web.url)
    head = (
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: 100000\r\nAccept: application/json\r\n\r\n--b\r\n"
    )
    slow = [socket.create_connection((parts.hostname, parts.port), timeout=30) for _ in range(6)]
    for connection in slow:
        connection.sendall(head)
    began = time.monotonic()
    assert honest(web.url, known[0], "meanwhile") == "answered rightly"
    said = [connection.recv(4096) for connection in slow]
    assert time.monotonic() - began < 20
    assert all(b" 408 " in answer.splitlines()[0] for answer in said), said
    for connection in slow:
        connection.close()
