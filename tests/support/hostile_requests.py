"""Hostile requests to a web app that runs, honest ones between them, and what became of each."""

from __future__ import annotations

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from urllib.parse import urlsplit

from support import hostile
from support.accounting import ANSWERED, KnownPhoto, judge, learn
from support.exchange import HttpAnswer, whole
from support.web_app import Site

from gourmet.systems.food11.contract import SYSTEM

# A photo whose answer is known goes between every few hostile requests, on another connection.
HONEST_EVERY = 8
# So few are never too much for one worker.
THREADS = 3
# The documented errors of a machine that has too much to do.
BUSY = (b'"overloaded"', b'"too_slow"', b'"triton_busy"', b'"triton_too_slow"')


def send(url: str, wire: bytes, seconds: float = 60) -> HttpAnswer | None:
    """Send raw bytes and return the reply, or nothing if the connection was closed."""
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
    head, separator, body = received.partition(b"\r\n\r\n")
    if separator and b"chunked" in head.lower():  # a heat map's lines
        return HttpAnswer(int(head.split()[1]), {}, body)
    return whole(received)


def honest(url: str, photo: KnownPhoto, name: str) -> str:
    answer = Site(urlsplit(url).port or 80).predict(photo.data, X_Request_ID=name)
    outcome, reason = judge(answer, photo, name)
    return "answered rightly" if outcome == ANSWERED else f"HONEST {outcome}: {reason}"


def outcome(url: str, number: int, known: list[KnownPhoto]) -> tuple[str, str]:
    """Return the result of a hostile request and its description."""
    if number % HONEST_EVERY == 0:
        return honest(url, known[number % len(known)], f"honest-{number}"), "honest"
    description, wire = hostile.request(number)
    answer = send(url, wire)
    if answer is None:
        return "no answer", description
    if answer.status == HTTPStatus.NOT_IMPLEMENTED and b"Unsupported transfer coding" in answer.body:
        return "501", description  # what HTTP asks for
    if answer.status in (503, 504) and any(code in answer.body for code in BUSY):
        return "busy", description
    if answer.status >= 500:
        return f"{answer.status}: {answer.body[:200]!r}", description
    named = answer.headers.get("x-request-id")
    if named not in (None, f"fuzz-{number}") and len(named) != 32:  # 32: made by the app
        return f"WRONG ID {named}", description
    return str(answer.status), description


def attack(url: str, numbers: range) -> tuple[Counter[str], dict[str, str]]:
    """Send all of these, several at a time; the counts, and an example of each."""
    known = learn(url, SYSTEM.examples(6, 11, (200, 150)))
    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(lambda number: outcome(url, number, known), numbers))
    return Counter(result for result, _ in outcomes), dict(outcomes)


def bad(results: Counter[str]) -> dict[str, int]:
    fine = {str(status.value) for status in HTTPStatus if 200 <= status < 500}
    fine |= {"501", "busy", "answered rightly", "no answer"}
    return {result: count for result, count in results.items() if result not in fine}
