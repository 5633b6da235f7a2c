"""The app's limits: who may come in, who waits, who is refused, and that every place is given back."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask, request
from support.fake_classifier import FakeClassifier, predicted

from app import create_app
from app.admission.early_refusal import EarlyRefusals
from app.admission.queue import Admission
from app.classifier import Prediction
from app.core.errors import Overloaded, TritonUnavailable
from app.core.http import marked
from app.core.metrics import Metrics
from app.core.settings import Settings
from app.triton.client import Deadline
from gourmet.systems.food11 import contract

SOUP = predicted(
    tuple(0.9 if label == "Soup" else 0.01 for label in contract.SYSTEM.labels),
    "m",
    "1",
    timings_ms={"decode": 1.0, "triton": 1.0},
)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


LOCAL = "127.0.0.1"


class Slow(FakeClassifier):
    """Answers when it is told to."""

    def __init__(self, outcome: Prediction | Exception) -> None:
        super().__init__(outcome)
        self.may_answer = threading.Event()

    def classify(
        self, photo: bytes, deadline: Deadline, request_id: str = "", model: str = "", **options: Any
    ) -> Prediction:
        if request_id != "readyz":  # which pages ask for their links
            assert self.may_answer.wait(20)
        return super().classify(photo, deadline, request_id, model, **options)


def post(app: Any, path: str = "/predict", **environ: Any) -> Any:
    form = {"file": (io.BytesIO(contract.SYSTEM.sample()), "x.jpg")}
    headers = {"Accept": "application/json"}
    return app.test_client().post(path, data=form, headers=headers, environ_base=environ)


@pytest.mark.parametrize("outcome", [SOUP, TritonUnavailable("away"), ZeroDivisionError()])
@pytest.mark.parametrize("path", ["/predict", "/api/v1/classify", "/nowhere", "/predict?model=none"])
def test_every_place_is_given_back_however_a_request_ends(outcome: Any, path: str) -> None:
    app = create_app(Settings(max_at_work=1, max_waiting=0, max_uploads=1), FakeClassifier(outcome))
    statuses = {post(app, path).status_code for _ in range(3)}
    assert len(statuses) == 1
    admission: Admission = app.extensions["admission"]
    assert (admission.queue._turns.free, admission._slots._uploads.free) == (1, 1)
    assert admission._slots._bytes.free == Settings().max_call_bytes
    text = app.test_client().get("/metrics").text
    assert "web_refusals_total{" not in text
    assert 'web_photos_in_flight{stage="upload"} 1' not in text


def test_what_is_too_much_is_refused_before_it_is_read_and_counted() -> None:
    classifier = Slow(SOUP)
    app = create_app(Settings(max_at_work=1, max_waiting=1), classifier)
    admission: Admission = app.extensions["admission"]
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(post, app) for _ in range(2)]
        eventually(lambda: admission.queue.is_full(LOCAL))
        shown = app.test_client().get("/metrics").text
        refused = post(app, "/api/v1/classify")
        assert app.test_client().get("/healthz").status_code == 200
        assert app.test_client().get("/").status_code == 200
        classifier.may_answer.set()
        assert {each.result().status_code for each in taken} == {200}
    assert refused.status_code == 503
    assert refused.json["error"]["code"] == "overloaded"
    assert int(refused.headers["Retry-After"]) >= 1
    for stage, many in (("upload", 0), ("waiting", 1), ("work", 1)):
        assert f'web_photos_in_flight{{stage="{stage}"}} {many}.0' in shown
    after = app.test_client().get("/metrics").text
    assert 'web_refusals_total{at="line"} 1.0' in after
    assert 'web_photos_in_flight{stage="work"} 0.0' in after
    waited = [each.result().json["timings_ms"].get("wait", 0) for each in taken]
    assert min(waited) == 0 < max(waited)
    assert post(app).status_code == 200


# A refusal from the first bytes of a request


HEAD = (
    b"POST /predict HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n"
    b"X-Request-ID: me-7\r\nContent-Length: 12\r\n\r\n"
)


def test_who_was_let_in_has_the_last_place_and_nobody_who_comes_after() -> None:
    classifier = Slow(SOUP)
    app = create_app(Settings(max_at_work=1, max_waiting=1), classifier)
    admission: Admission = app.extensions["admission"]
    with socket.socket() as connection, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, app)
        eventually(lambda: admission.queue.is_busy(LOCAL))
        admission.expect(HEAD.replace(b"/predict", b"/healthz"), connection, LOCAL)
        assert not admission.queue.is_full(LOCAL)
        admission.expect(HEAD, connection, LOCAL)
        assert admission.queue.is_full(LOCAL)
        second = pool.submit(post, app, **{"gunicorn.socket": connection})
        eventually(lambda: len(admission.queue._waiting) == 1)
        assert post(app).status_code == 503
        classifier.may_answer.set()
        assert [first.result().status_code, second.result().status_code] == [200, 200]
    assert not admission.queue._coming


@pytest.mark.parametrize(
    ("hops", "lines", "client"),
    [
        (0, b"X-Forwarded-For: 192.0.2.9\r\n", LOCAL),
        (1, b"X-Forwarded-For: 6.6.6.6, 192.0.2.9\r\n", "192.0.2.9"),
        (1, b"X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for:192.0.2.9\r\n", "192.0.2.9"),
        (2, b"X-Forwarded-For: 192.0.2.9, 192.0.2.8\r\n", "192.0.2.9"),
        (2, b"X-Forwarded-For: 192.0.2.9\r\n", LOCAL),
        (1, b"", LOCAL),
    ],
)
def test_a_client_is_the_peer_or_whom_the_trusted_proxy_names(hops: int, lines: bytes, client: str) -> None:
    app = create_app(Settings(trusted_proxies=hops, max_at_work=1), FakeClassifier(SOUP))
    found: Admission = app.extensions["admission"]
    head = HEAD.replace(b"Host: x\r\n", b"Host: x\r\n" + lines) + b"\r\nX-Forwarded-For: 7.7.7.7\r\n"
    assert found.client(head, LOCAL) == client
    # And Flask sees the same.
    named = ",".join(line.split(b":")[1].decode() for line in lines.splitlines())
    clients = []
    app.before_request(lambda: clients.append(request.remote_addr))
    post(app, HTTP_X_FORWARDED_FOR=named)
    assert clients == [client]


@pytest.fixture(scope="module")
def admission() -> Admission:
    found: Admission = create_app(Settings(), FakeClassifier(SOUP)).extensions["admission"]
    return found


@pytest.mark.parametrize(
    "head",
    [
        HEAD,
        HEAD.replace(b"X-Request-ID", b"x-request-id").replace(b"Content-Length", b"CONTENT-LENGTH"),
        HEAD.replace(b"/predict", b"/predict?model=a"),
        HEAD.replace(b"/predict", b"/api/v1/classify").replace(b"Accept: application/json\r\n", b""),
    ],
)
def test_a_program_is_refused_by_its_head_alone(admission: Admission, head: bytes) -> None:
    refusal = admission.early.refusal(head + b"twelve bytes")
    assert refusal
    answer, request_bytes = refusal
    assert request_bytes == len(head) + 12
    lines, _, body = answer.partition(b"\r\n\r\n")
    assert lines.startswith(b"HTTP/1.1 503 ")
    assert b"X-Request-ID: me-7" in lines
    assert b"Retry-After: 2" in lines
    assert f"Content-Length: {len(body)}".encode() in lines
    assert json.loads(body)["error"] == {
        "code": "overloaded",
        "message": str(Overloaded("line")),
        "request_id": "me-7",
    }


@pytest.mark.parametrize(
    "head",
    [
        b"",
        HEAD[:-2],
        HEAD.replace(b"POST", b"GET"),
        HEAD.replace(b"/predict", b"/predictions"),
        HEAD.replace(b"/predict", b"/healthz"),
        HEAD.replace(b"application/json", b"text/html"),
        HEAD.replace(b"Content-Length: 12", b"Transfer-Encoding: chunked"),
        HEAD.replace(b"Host: x", b"Origin: https://elsewhere.example"),
        HEAD.replace(b"Content-Length: 12\r\n\r\n", b"\r\nContent-Length: 12\r\n\r\n"),
    ],
)
def test_whatever_else_it_is_is_looked_at_more_closely(admission: Admission, head: bytes) -> None:
    assert admission.early.refusal(head) is None


def test_which_requests_are_admitted_is_what_the_views_say() -> None:
    app = Flask(__name__)
    app.post("/parts/<name>/x")(marked(admitted=True)(lambda name: name))
    app.add_url_rule("/a.b", "a", marked(admitted=True)(lambda: ""), methods=["POST"])
    app.add_url_rule("/open", "open", lambda: "", methods=["POST"])
    pattern, routes = EarlyRefusals(app, Metrics()).admitted

    def route(path: bytes) -> str | None:
        match = pattern.match(b"POST " + path + b" HTTP/1.1\r\n")
        return routes[(match.lastindex or 1) - 1] if match else None

    paths = (b"/parts/7/x", b"/a.b?c", b"/parts/7/8/x", b"/aXb", b"/open")
    assert [route(path) for path in paths] == ["/parts/<name>/x", "/a.b", None, None, None]
