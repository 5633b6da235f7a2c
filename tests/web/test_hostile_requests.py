"""What hostile requests were found to do to the app, so that they do it no more; some new ones every time."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.http as triton_http
from support import hostile
from support.accounting import ANSWERED, KnownPhoto, judge, learn
from support.exchange import HttpAnswer, whole
from support.triton import RunningTriton
from support.web_app import Site
from tritonclient.utils import InferenceServerException

from gourmet.systems.food11.contract import SYSTEM

REQUESTS = 150
ROWS = 60

HEAD = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n"
)
# A photo whose answer is known goes between every few hostile requests, on another connection.
HONEST_EVERY = 8
# So few are never too much for one worker.
WEB_THREADS = 3
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


# Found: an error that nobody foresaw, and so a 500.
@pytest.mark.parametrize(
    "path", [b"/predict", b"/api/v1/classify", b"/api/v1/digits", b"/api/v1/explain", b"/api/v1/caption"]
)
@pytest.mark.parametrize("chunks", [b"zz\r\n", b"-1\r\nabc\r\n", b"", b"3\r\nabcdef\r\n", b"ffffffff\r\nabc"])
def test_invalid_chunks_are_a_client_error(python_web: Any, path: bytes, chunks: bytes) -> None:
    answer = send(python_web.url, HEAD % path + chunks)
    assert answer
    assert answer.status == 400, answer.body
    assert answer.json["error"]["code"] == "bad_request"
    assert answer.headers["connection"] == "close"


# Drawn by chance, with photos whose answers are known between them


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


def attack_web(url: str, numbers: range) -> tuple[Counter[str], dict[str, str]]:
    """Send all of these, several at a time; the counts, and an example of each."""
    known = learn(url, SYSTEM.examples(6, 11, (200, 150)))
    with ThreadPoolExecutor(WEB_THREADS) as pool:
        outcomes = list(pool.map(lambda number: outcome(url, number, known), numbers))
    return Counter(result for result, _ in outcomes), dict(outcomes)


def bad(results: Counter[str]) -> dict[str, int]:
    fine = {str(status.value) for status in HTTPStatus if 200 <= status < 500}
    fine |= {"501", "busy", "answered rightly", "no answer"}
    return {result: count for result, count in results.items() if result not in fine}


@pytest.mark.promise("SECURITY 4")
def test_hostile_requests_are_refused_and_honest_ones_answered(python_web: Any) -> None:
    results, examples = attack_web(python_web.url, range(100_000, 100_000 + REQUESTS))
    assert bad(results) == {}, examples
    assert results["no answer"] == 0, examples["no answer"]
    assert results["answered rightly"] > REQUESTS / 10


# Rows straight to the Python model, photos whose answers are known between them

MODEL = "food_classifier"
ROW_THREADS = 4
# Batches of other sizes round differently.
SAME = 2e-3


class RowsClient:
    def __init__(self, url: str) -> None:
        self._url = url
        self._mine = threading.local()  # a client for each thread, as tritonclient demands
        self._photos = SYSTEM.examples(6, 11, (200, 150))
        self._known = [self.ask([photo])[0] for photo in self._photos]

    def ask(self, blobs: list[bytes]) -> Any:
        """The probabilities of each; raises where the model refuses."""
        tensor = triton_http.InferInput("INPUT_IMAGE", [len(blobs), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[blob] for blob in blobs], np.object_))
        client = getattr(self._mine, "client", None)
        if client is None:
            client = triton_http.InferenceServerClient(self._url, network_timeout=120.0)
            self._mine.client = client
        return client.infer(MODEL, [tensor]).as_numpy("PROBABILITIES")

    def honest(self, number: int) -> str:
        photo = number % len(self._photos)
        answer = self.ask([self._photos[photo]])[0]
        right = np.abs(answer - self._known[photo]).max() < SAME
        return "answered rightly" if right else f"WRONG answer to photo {photo}"

    def hostile(self, number: int) -> str:
        draw = random.Random(f"row {number}")
        blobs = [hostile.file(draw.randrange(1 << 30))[1] for _ in range(draw.choice((1, 1, 1, 2, 5)))]
        index = draw.randrange(len(blobs) + 1)
        photo = number % len(self._photos)
        try:
            answers = self.ask([*blobs[:index], self._photos[photo], *blobs[index:]])
        except InferenceServerException as exc:
            # A row that is not a picture fails its own request; the message names the row and the reason.
            status, message = str(exc.status()), str(exc.message())
            return (
                "refused"
                if status == "400" and "INPUT_IMAGE row" in message
                else f"{status}: {message}"[:300]
            )
        right = np.abs(answers[index] - self._known[photo]).max() < SAME
        fine = answers.shape == (len(blobs) + 1, 11) and np.isfinite(answers).all() and right
        return "answered" if fine else "WRONG answer to the photo among hostile rows"


def attack_triton(triton: RunningTriton, numbers: range) -> Counter[str]:
    client = RowsClient(triton.http_url)

    def ask(number: int) -> str:
        return client.honest(number) if number % 8 == 0 else client.hostile(number)

    with ThreadPoolExecutor(ROW_THREADS) as pool:
        return Counter(pool.map(ask, numbers))


def test_hostile_rows_fail_their_own_requests_and_no_stub_dies(triton: RunningTriton) -> None:
    before = triton.stubs()
    results = attack_triton(triton, range(ROWS))
    assert set(results) <= {"answered", "answered rightly", "refused"}
    assert triton.stubs() == before
