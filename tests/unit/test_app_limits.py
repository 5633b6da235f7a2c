"""The app's limits: who may come in, who waits, who is refused, and that every place is given back."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.eventually import eventually
from support.fake_classifier import EGG, FakeClassifier, form
from werkzeug.test import EnvironBuilder

from app import create_app
from app.admission.uploads import Admission
from app.classifier import Prediction
from app.core.errors import Overloaded, TritonUnavailable
from app.core.http import FlaskApp
from app.core.settings import Settings
from gourmet.client.deadline import Deadline

LOCAL = "127.0.0.1"


class HeldClassifier(FakeClassifier):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    def classify(
        self, photo: bytes, deadline: Deadline, request_id: str = "", model: str = "", **options: Any
    ) -> Prediction:
        if request_id != "readyz":  # which pages ask for their links
            assert self.may_answer.wait(20)
        return super().classify(photo, deadline, request_id, model, **options)


def post(app: Any, path: str = "/predict", **environ: Any) -> Any:
    headers = {"Accept": "application/json"}
    return app.test_client().post(path, data=form(), headers=headers, environ_base=environ)


@pytest.mark.parametrize("outcome", [EGG, TritonUnavailable("away"), ZeroDivisionError()])
@pytest.mark.parametrize("path", ["/predict", "/api/v1/classify", "/nowhere", "/predict?model=none"])
def test_every_place_is_given_back_however_a_request_ends(outcome: Any, path: str) -> None:
    app = create_app(Settings(max_at_work=1, max_waiting=0, max_uploads=1), FakeClassifier(outcome))
    statuses = {post(app, path).status_code for _ in range(3)}
    assert len(statuses) == 1
    admission: Admission = app.extensions["admission"]
    assert (admission.queues["photos"]._turns.free, admission._slots.uploads.free) == (1, 1)
    assert admission._slots.bytes.free == Settings().max_call_bytes
    text = app.test_client().get("/metrics").text
    assert "web_refusals_total{" not in text
    assert 'web_photos_in_flight{stage="upload"} 1' not in text


def test_what_is_too_much_is_refused_before_it_is_read_and_counted() -> None:
    classifier = HeldClassifier()
    app = create_app(Settings(max_at_work=1, max_waiting=1), classifier)
    admission: Admission = app.extensions["admission"]
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(post, app) for _ in range(2)]
        eventually(lambda: admission.queues["photos"].is_full(LOCAL))
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


def test_pages_of_a_client_that_is_not_alone_are_made_one_after_the_other() -> None:
    """And nobody waits for them: neither another's page, nor a probe, nor what has a queue of its own."""
    app = create_app(Settings(max_waiting=4), FakeClassifier())
    pages = app.extensions["admission"].queues["pages"]
    pages.acquire(LOCAL)
    pages.acquire("192.0.2.9")
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(app.test_client().get, "/")
        eventually(lambda: pages._waiting.of(LOCAL) == 1)
        assert post(app).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics", "/test", "/api/v1/health"):
            assert app.test_client().get(path).status_code == 200
        theirs = app.test_client().get("/", environ_base={"REMOTE_ADDR": "192.0.2.8"})
        assert theirs.status_code == 200
        assert not page.done()
        pages.release(LOCAL)
        assert page.result().status_code == 200
    pages.release("192.0.2.9")
    assert pages._turns.free == Settings().at_work["pages"]


def test_a_client_with_another_page_waiting_rests_after_each_while_others_are_served() -> None:
    app = create_app(Settings(), FakeClassifier())
    pages = app.extensions["admission"].queues["pages"]

    def seconds() -> float:
        """Of 24 pages, four asked for at a time."""
        began = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(lambda _: app.test_client().get("/"), range(24))
            assert {each.status_code for each in answers} == {200}
        return time.perf_counter() - began

    seconds()
    alone = seconds()
    pages.acquire("192.0.2.9")
    pages.release("192.0.2.9")
    assert seconds() > 1.5 * alone
    assert pages._turns.free == Settings().at_work["pages"]


# A refusal without Flask


@pytest.fixture(scope="module")
def full() -> FlaskApp:
    """An app whose queue is full for one client, which the others are not behind."""
    app = create_app(Settings(max_at_work=1, max_waiting=0, trusted_proxies=1), FakeClassifier())
    app.extensions["admission"].queues["photos"].acquire("192.0.2.9")
    return app


AS_PROGRAM = {"Accept": "application/json", "X-Request-ID": "me-7", "X-Forwarded-For": "6.6.6.6, 192.0.2.9"}


def refused_before_flask(app: FlaskApp, path: str, **headers: str) -> Any:
    asked = EnvironBuilder(path, method="POST", headers=AS_PROGRAM | headers, data=b"x" * 12)
    return app.extensions["admission"].refuse(asked.get_environ() | {"REMOTE_ADDR": "192.0.2.9"})


@pytest.mark.parametrize("path", ["/predict", "/predict?model=a", "/api/v1/classify"])
def test_a_program_is_refused_before_flask_and_counted(full: FlaskApp, path: str) -> None:
    response = full.test_client().post(path, headers=AS_PROGRAM, data=b"x" * 12)
    assert (response.status_code, response.headers["X-Request-ID"]) == (503, "me-7")
    assert (response.headers["Retry-After"], response.headers["Connection"]) == ("2", "close")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    message = str(Overloaded("line"))
    assert response.json["error"] == {"code": "overloaded", "message": message, "request_id": "me-7"}
    assert refused_before_flask(full, path)
    route = path.partition("?")[0]
    counted = f'web_requests_total{{method="POST",route="{route}",status="503"}}'
    assert counted in full.test_client().get("/metrics").text


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/predictions", {}),
        ("/healthz", {}),
        ("/predict", {"Accept": "text/html"}),
        ("/predict", {"Origin": "https://elsewhere.example"}),
    ],
)
def test_whatever_else_it_is_is_for_flask(full: FlaskApp, path: str, headers: dict[str, str]) -> None:
    assert refused_before_flask(full, path, **headers) is None


def test_who_is_not_the_one_that_fills_the_queue_is_let_in(full: FlaskApp) -> None:
    """The queue knows the client that the trusted proxy names, and what else was said is not believed."""
    app = create_app(Settings(max_at_work=4, max_waiting=0, trusted_proxies=1), FakeClassifier())
    for _ in range(3):
        app.extensions["admission"].queues["photos"].acquire("192.0.2.9")
    statuses = [
        post(app, HTTP_X_FORWARDED_FOR=named).status_code
        for named in ("192.0.2.9", "6.6.6.6, 192.0.2.9", "192.0.2.9, 192.0.2.8")
    ]
    assert statuses == [503, 503, 200]
