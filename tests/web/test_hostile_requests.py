"""Hostile requests to the app, between photos whose answers are known."""

from __future__ import annotations

import base64
import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from support import hostile
from support.accounting import ANSWERED, KnownPhoto, judge, learn
from support.triton import RunningTriton
from support.web_app import HttpAnswer, Site

from gourmet.stack.connect import connect
from gourmet.systems.food11.contract import SYSTEM
from gourmet.triton_client.errors import InvalidRequest

REQUESTS, ROWS = 150, 60
# A photo whose answer is known goes between every few hostile ones, on another connection.
HONEST_EVERY = 8
# So few are never too much for one worker.
WEB_THREADS = 3
# The documented errors of a machine that has too much to do.
BUSY = (b'"overloaded"', b'"too_slow"', b'"triton_busy"', b'"triton_too_slow"')
FINE = {str(status.value) for status in HTTPStatus if 200 <= status < 500} | {"501", "busy", "answered"}


def send(url: str, wire: bytes) -> HttpAnswer | None:
    """Send raw bytes and return the reply, or nothing if the connection was closed."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        with suppress(OSError):  # refused before it was all sent; what was said is read all the same
            connection.sendall(wire)
            connection.shutdown(socket.SHUT_WR)
        with suppress(OSError, HTTPException), HTTPResponse(connection, method="POST") as reply:
            reply.begin()
            head = {name.lower(): value for name, value in reply.getheaders()}
            return HttpAnswer(reply.status, head, reply.read())
    return None


HEAD = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n"
)


# Found: an error that nobody foresaw, and so a 500.
@pytest.mark.parametrize(
    "path", [b"/predict", b"/api/v1/classify", b"/api/v1/digits", b"/api/v1/explain", b"/api/v1/caption"]
)
@pytest.mark.parametrize("chunks", [b"zz\r\n", b"-1\r\nabc\r\n", b"", b"3\r\nabcdef\r\n", b"ffffffff\r\nabc"])
def test_invalid_chunks_are_a_client_error(python_web: Any, path: bytes, chunks: bytes) -> None:
    answer = send(python_web.url, HEAD % path + chunks)
    assert answer
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_request")
    assert answer.headers["connection"] == "close"


def body(draw: random.Random, data: bytes) -> tuple[str, bytes]:
    """A content type and a body with these bytes, often wrongly made."""
    text = base64.b64encode(data).decode()
    as_json = (f'{{"images": ["{text}", 3, null]}}', f'{{"images": "{text}"}}', '{"images": [' * 200, "nan")
    field = draw.choice((b"file", b"file", b"photo", b""))
    filename = draw.choice((b"photo.jpg", b"photo.jpg", b"../../etc/passwd", b"\xff\xfe", b"a" * 5000))
    part = b'--b\r\nContent-Disposition: form-data; name="%b"; filename="%b"\r\n\r\n' % (field, filename)
    form = (part + data + b"\r\n") * draw.choice((1, 1, 1, 40)) + b"--b--\r\n"
    defect = draw.choice((hostile.cut_short, hostile.bytes_changed, hostile.part_removed_or_repeated))
    kind = "multipart/form-data; boundary=b"
    return draw.choice(
        (
            *((kind, form), (kind, form), (kind, defect(draw, form)), (kind + "x" * 99, form)),
            *(("image/jpeg", data), ("image/svg+xml", data), ("", data)),
            *(("application/json", each.encode()) for each in as_json),
            ("application/x-www-form-urlencoded", b"&" * 5000 + data[:2000]),
        )
    )


def framed(draw: random.Random, content: bytes) -> tuple[str, bytes]:
    """A header that says how long the body is, rightly for most, and the body as it is sent."""
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    lies = (0, len(content) // 2, len(content) + 10, 10**30, -1, "x", "1, 2", "")
    sizes = (b"-1", b"ffffffffffffffff", b"%x" % (len(content) + 5), b"zz", b"5;" + b"x" * 9000)
    return draw.choice(
        (
            *((f"Content-Length: {len(content)}", content),) * 3,
            ("Transfer-Encoding: chunked", chunk if content else b"0\r\n\r\n"),
            (f"Content-Length: {draw.choice(lies)}", content),
            ("Transfer-Encoding: chunked", draw.choice(sizes) + b"\r\n" + content),
        )
    )


def request(number: int) -> tuple[str, bytes]:
    """The hostile HTTP request of that number as it goes over the wire, and the file in it."""
    draw = random.Random(f"request {number}")
    name, data = hostile.file(draw.randrange(1 << 30))
    route = draw.choice(("/predict", "/api/v1/classify", "/api/v1/digits"))
    method = draw.choice(("POST",) * 20 + ("GET", "TRACE", "post", "\x00"))
    odd = draw.choice(
        ("",) * 60 + ("Expect: 100-continue\r\n", "Content-Encoding: gzip\r\n", f"Cookie: {'a' * 9000}\r\n")
    )
    kind, content = body(draw, data)
    length, wire = framed(draw, content)
    head = (
        f"{method} {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: {kind}\r\n"
        f"X-Request-ID: fuzz-{number}\r\nAccept: application/json\r\n{odd}{length}\r\n\r\n"
    )
    return f"{route}, {length}, {name}", head.encode("latin-1", "replace") + wire


def outcome(url: str, number: int, known: list[KnownPhoto]) -> tuple[str, str]:
    """Return the result of a request and its description."""
    if number % HONEST_EVERY == 0:
        photo, name = known[number % len(known)], f"honest-{number}"
        reply = Site(urlsplit(url).port or 80).predict(photo.data, X_Request_ID=name)
        how, why = judge(reply, photo, name)
        return ("answered" if how == ANSWERED else f"HONEST {how}: {why}"), "honest"
    description, wire = request(number)
    answer = send(url, wire)
    if answer is None:
        return "no answer", description
    if answer.status == HTTPStatus.NOT_IMPLEMENTED and b"Unsupported transfer coding" in answer.body:
        return "501", description  # what HTTP asks for
    if answer.status in (503, 504) and any(code in answer.body for code in BUSY):
        return "busy", description
    named = answer.headers.get("x-request-id")
    if answer.status < 500 and named not in (None, f"fuzz-{number}") and len(named) != 32:  # the app's own
        return f"WRONG ID {named}", description
    return str(answer.status), description


@pytest.mark.promise("SECURITY 4")
def test_hostile_requests_are_refused_and_honest_ones_answered(
    python_web: Any, triton: RunningTriton
) -> None:
    """The model gets the photos as they are and decodes them: none of its processes may die."""
    known, stubs = learn(python_web.url, SYSTEM.examples(6, 11, (200, 150))), triton.stubs()
    with ThreadPoolExecutor(WEB_THREADS) as pool:
        outcomes = list(pool.map(lambda number: outcome(python_web.url, number, known), range(REQUESTS)))
    assert [result for result in outcomes if result[0] not in FINE] == []
    assert Counter(result for result, _ in outcomes)["answered"] > REQUESTS / 10
    assert triton.stubs() == stubs


def test_a_hostile_row_fails_its_own_request_and_no_other_photo(triton: RunningTriton) -> None:
    """Straight to the model: the refusal names the row, and photos beside one that is read are answered."""
    photos, stubs = SYSTEM.examples(6, 11, (200, 150)), triton.stubs()

    def ask(*rows: bytes) -> np.ndarray:
        tensor = np.array([[row] for row in rows], np.object_)
        with connect(triton.http_url) as client:
            return client.infer("food_classifier", {"INPUT_IMAGE": tensor}).outputs["PROBABILITIES"]

    alone = np.concatenate([ask(photo) for photo in photos])

    def outcome(number: int) -> str:
        at, good, is_good = number % 3, [number % 6, (number + 1) % 6], number % 4 == 0
        rows = [photos[photo] for photo in good]
        if not is_good:
            rows.insert(at, hostile.file(number)[1])
        try:
            answers = ask(*rows)
        except InvalidRequest as exc:
            return "refused" if exc.reason.startswith(f"INPUT_IMAGE row {at} of 3: ") else exc.reason
        np.testing.assert_allclose(answers if is_good else np.delete(answers, at, 0), alone[good], atol=2e-3)
        return "good" if is_good else "answered"

    with ThreadPoolExecutor(4) as pool:
        outcomes = Counter(pool.map(outcome, range(ROWS)))
    assert outcomes.keys() == {"good", "answered", "refused"}
    assert triton.stubs() == stubs
