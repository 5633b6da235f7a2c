"""Thousands of hostile requests to the real app in front of a real Triton, between honest ones."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from support.accounting import learn
from support.hostile_requests import attack, bad, honest
from support.table import Row

from gourmet.systems.food11.contract import SYSTEM

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "4000"))


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
    known = learn(web.url, SYSTEM.examples(6, 11, (200, 150)))
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
