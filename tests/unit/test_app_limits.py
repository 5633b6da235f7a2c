"""The app's limits: who may come in, who waits, who is refused, and that every place is given back."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import has_request_context
from support.eventually import eventually
from support.fake_classifier import EGG, FakeClassifier, form

from app import create_app
from app.models import Prediction
from app.web.admission import _client_left
from app.web.errors import ServingError
from app.web.settings import Settings
from gourmet.triton_client.deadline import Deadline


class HeldClassifier(FakeClassifier):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    def classify(self, photo: bytes, deadline: Deadline, model: str = "", **options: Any) -> Prediction:
        if has_request_context():  # pages ask for their links without one
            assert self.may_answer.wait(20)
        return super().classify(photo, deadline, model, **options)


def post(app: Any, path: str = "/predict", **environ: Any) -> Any:
    headers = {"Accept": "application/json"}
    return app.test_client().post(path, data=form(), headers=headers, environ_base=environ)


@pytest.mark.parametrize("outcome", [EGG, ServingError("triton_unavailable", "away"), ZeroDivisionError()])
@pytest.mark.parametrize("path", ["/predict", "/api/v1/classify", "/nowhere", "/predict?model=none"])
def test_every_place_in_the_queue_is_freed_however_a_request_ends(outcome: Any, path: str) -> None:
    app = create_app(Settings(max_at_work=1, max_waiting=0), FakeClassifier(outcome))
    statuses = {post(app, path).status_code for _ in range(3)}
    assert len(statuses) == 1
    text = app.test_client().get("/metrics").text
    assert "web_refusals_total{" not in text
    for stage in ("upload", "waiting", "work"):
        assert f'web_photos_in_flight{{stage="{stage}"}} 1' not in text


def test_a_photo_beyond_the_queue_is_refused_before_its_body_is_read() -> None:
    classifier = HeldClassifier()
    app = create_app(Settings(max_at_work=1, max_waiting=1), classifier)
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(post, app) for _ in range(2)]
        eventually(lambda: 'stage="waiting"} 1.0' in app.test_client().get("/metrics").text)
        shown = app.test_client().get("/metrics").text
        began = time.monotonic()
        refused = post(app, "/api/v1/classify")
        assert time.monotonic() - began >= 0.5, "who asks again at once takes the CPU from the photos"
        assert app.test_client().options("/api/v1/classify").status_code == 200, "which needs no place"
        assert app.extensions["admission"]._queues["photos"]._held == {"127.0.0.1": 1}
        assert app.test_client().get("/healthz").status_code == 200
        assert app.test_client().get("/").status_code == 200
        classifier.may_answer.set()
        assert {future.result().status_code for future in taken} == {200}
    assert refused.status_code == 503
    assert refused.json["error"]["code"] == "overloaded"
    assert int(refused.headers["Retry-After"]) >= 1
    for stage, many in (("upload", 0), ("waiting", 1), ("work", 1)):
        assert f'web_photos_in_flight{{stage="{stage}"}} {many}.0' in shown
    assert "web_texts_in_flight{" not in shown  # each kind has a gauge of its own
    after = app.test_client().get("/metrics").text
    assert 'web_refusals_total{at="line"} 1.0' in after
    assert 'web_photos_in_flight{stage="work"} 0.0' in after
    waited = [future.result().json["timings_ms"].get("wait", 0) for future in taken]
    assert min(waited) == 0 < max(waited)
    assert post(app).status_code == 200


def test_many_refusals_take_one_line_of_the_log_a_second(caplog: pytest.LogCaptureFixture) -> None:
    classifier = HeldClassifier()
    app = create_app(Settings(max_at_work=1, max_waiting=0), classifier)
    began = time.monotonic()
    with ThreadPoolExecutor(9) as pool:
        taken = pool.submit(post, app)
        eventually(lambda: 'web_photos_in_flight{stage="work"} 1.0' in app.test_client().get("/metrics").text)
        assert {reply.status_code for reply in pool.map(post, [app] * 8)} == {503}
        classifier.may_answer.set()
        assert taken.result().status_code == 200
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert 1 <= len(lines) <= 1 + time.monotonic() - began
    assert 'web_refusals_total{at="line"} 8.0' in app.test_client().get("/metrics").text


@pytest.mark.promise("SECURITY 5")
def test_a_request_that_waited_too_long_gets_503_with_retry_after() -> None:
    classifier = HeldClassifier()
    app = create_app(Settings(max_at_work=1, max_waiting=1, max_wait_s=0.05), classifier)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(post, app)
        eventually(lambda: 'stage="work"} 1.0' in app.test_client().get("/metrics").text)
        late = post(app)
        classifier.may_answer.set()
        assert taken.result().status_code == 200
    assert (late.status_code, late.json["error"]["code"]) == (503, "overloaded")
    assert late.headers["Retry-After"]
    assert 'web_refusals_total{at="wait"} 1.0' in app.test_client().get("/metrics").text


def test_a_client_that_closes_only_its_sending_side_has_a_moment_for_its_answer() -> None:
    app = create_app(Settings(), FakeClassifier())
    mine, theirs = socket.socketpair()
    with mine, theirs, app.test_request_context(environ_base={"gunicorn.socket": mine}):
        at_once, patient = _client_left(half_closed_s=0.0), _client_left(half_closed_s=0.3)
        assert (at_once(), patient()) == (False, False)
        theirs.shutdown(socket.SHUT_WR)
        assert (at_once(), patient()) == (True, False)
        eventually(patient, 5)
