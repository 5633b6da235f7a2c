"""The app's limits: who waits, who is refused, how much of an upload is read, and that no place is lost."""

from __future__ import annotations

import io
import math
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import has_request_context
from flask.testing import FlaskClient
from support.eventually import eventually
from support.fake_classifier import EGG, FakeClassifier, client, code, form

from app import create_app
from app.models import Prediction
from app.web.admission import _client_left
from app.web.errors import ServingError
from app.web.settings import Settings
from gourmet.served.fair_queue import FairQueue, QueueFull
from gourmet.systems.food11.contract import SYSTEM
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


# The queue
ME, YOU, SHE = "192.0.2.1", "192.0.2.2", "192.0.2.3"
EVER = math.inf


class Queued:
    """A queue with clients that wait, in threads of their own."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue, self.began, self.refused = queue, list[str](), list[str]()

    def come(self, *clients: str) -> None:
        for name in clients:
            waiting = len(self.queue._waiting)
            threading.Thread(target=self._wait, args=(name,), daemon=True).start()
            eventually(lambda before=waiting: len(self.queue._waiting) == before + 1)

    def _wait(self, client: str) -> None:
        try:
            self.queue.acquire(client, EVER)
        except QueueFull:
            self.refused.append(client)
        else:
            self.began.append(client)

    def release(self, client: str) -> None:
        before = len(self.began)
        self.queue.release(client)
        eventually(lambda: len(self.began) == before + 1)


@pytest.mark.promise("operating: one client sends more than all others")
def test_a_client_with_half_of_the_places_waits_while_another_waits() -> None:
    queued = Queued(FairQueue(4))
    for _ in range(4):
        queued.queue.acquire(ME, EVER)
    queued.come(ME, ME, ME, YOU, YOU)
    for _ in range(2):
        queued.release(ME)
    assert queued.began == [YOU, YOU]
    queued.release(YOU)  # nobody but the greedy one waits any more: no place stays idle
    assert queued.began == [YOU, YOU, ME]


def test_a_client_never_exceeds_its_limit_and_the_machine_has_none() -> None:
    queued = Queued(FairQueue(4, max_per_client=2))
    assert [queued.queue.acquire(ME, EVER) for _ in range(2)] == [0.0, 0.0]
    queued.come(ME)
    assert [queued.queue.acquire("", EVER) for _ in range(2)] == [0.0, 0.0]
    queued.queue.release("")
    assert queued.began == []
    queued.release(ME)
    assert queued.began == [ME]
    queue = FairQueue(4, max_per_client=2)
    assert [queue.acquire("", time.monotonic() + 0.01) for _ in range(4)] == [0.0] * 4


def test_a_request_that_gave_up_leaves_no_gap() -> None:
    queue = FairQueue(1)
    queue.acquire(ME, EVER)
    with pytest.raises(TimeoutError):
        queue.acquire(YOU, time.monotonic() + 0.01)
    queue.release(ME)
    assert queue.acquire(ME, EVER) == 0.0


def test_a_request_whose_client_left_passes_its_place_on() -> None:
    queue = FairQueue(1)
    queue.acquire(ME, EVER)
    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(queue.acquire, YOU, EVER, lambda: True)
        eventually(lambda: len(queue._waiting) == 1)
        stayed = pool.submit(queue.acquire, SHE, EVER)
        eventually(lambda: len(queue._waiting) == 2)
        queue.release(ME)
        assert stayed.result(60) > 0.0
        assert isinstance(left.exception(60), TimeoutError)


def test_a_client_may_fill_the_queue_until_another_comes() -> None:
    queued = Queued(FairQueue(1, max_waiting=3))
    queued.queue.acquire(ME, EVER)
    queued.come(ME, ME, ME)
    with pytest.raises(QueueFull):
        queued.queue.acquire(ME, EVER)
    assert queued.refused == []
    threading.Thread(target=queued._wait, args=(YOU,), daemon=True).start()
    eventually(lambda: queued.refused == [ME])
    assert [waiter.client for waiter in queued.queue._waiting] == [ME, ME, YOU]


def test_of_clients_with_as_many_requests_the_newcomer_is_refused() -> None:
    queued = Queued(FairQueue(1, max_waiting=2))
    queued.queue.acquire(ME, EVER)
    queued.come(ME, YOU)
    with pytest.raises(QueueFull):
        queued.queue.acquire(SHE, EVER)
    assert queued.refused == []


def test_waiting_requests_sleep_until_they_get_a_place() -> None:
    """Found: a thousand that looked ten times a second took a quarter of the CPU."""
    queued = Queued(FairQueue(1))
    queued.queue.acquire(ME, EVER)
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    queued.come(*[ME] * 8)
    waiting = set(tasks.iterdir()) - before

    def are_asleep() -> bool:
        before = [(task / "status").read_text() for task in waiting]
        time.sleep(0.3)
        return before == [(task / "status").read_text() for task in waiting]

    assert len(waiting) == 8
    eventually(are_asleep)


def test_places_are_never_lost_or_doubled_by_many_threads() -> None:
    queue, at_work, max_at_work = FairQueue(3), [0], [0]
    lock = threading.Lock()

    def work(number: int) -> None:
        for _ in range(50):
            with queue.place(str(number % 4), EVER):
                with lock:
                    at_work[0] += 1
                    max_at_work[0] = max(max_at_work[0], at_work[0])
                with lock:
                    at_work[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert max_at_work[0] <= 3
    assert [queue.acquire(ME, EVER) for _ in range(3)] == [0.0] * 3


# Uploads
JSON = {"Accept": "application/json"}
PHOTO = SYSTEM.sample()
BOUNDARY = "b0undary"
END = f"--{BOUNDARY}--\r\n".encode()


def part(data: bytes, disposition: str = 'name="file"; filename="x.jpg"') -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + data + b"\r\n"


def send(browser: FlaskClient, body: bytes | Counting, path: str = "/predict", **options: Any) -> Any:
    stream = Counting(body) if isinstance(body, bytes) else body
    return browser.post(
        path,
        input_stream=stream,
        content_type=f"multipart/form-data; boundary={BOUNDARY}",
        headers=JSON,
        **{"content_length": len(stream.getvalue())} | options,
    )


class Counting(io.BytesIO):
    """Knows how much of it was read."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.taken += len(chunk)
        return chunk


@pytest.mark.parametrize(
    "body",
    [
        b"",
        part(PHOTO, 'name="other"; filename="x.jpg"') + END,
        part(b"", 'name="file"; filename=""') + END,
        part(b"some text", 'name="file"') + END,
        b"no boundary at all",
    ],
    ids=["nothing", "another field", "none chosen", "text field", "not multipart"],
)
def test_a_form_without_a_photo_says_so(body: bytes) -> None:
    assert code(send(client(), body)) == (400, "no_file")


@pytest.mark.parametrize("name", ["../../etc/passwd", "photo.svg", "a" * 3000, 'q";x="y.png', "фото.jpg"])
def test_the_name_of_a_file_does_not_matter(name: str) -> None:
    assert client().post("/predict", data=form(name=name), headers=JSON).status_code == 200


def test_the_cap_is_exact_and_named() -> None:
    browser = client(max_upload_mb=0.06)
    exact = PHOTO + b"\0" * (60_000 - len(PHOTO))
    assert send(browser, part(exact) + END).status_code == 200
    reply = send(browser, part(exact + b"\0") + END)
    assert code(reply) == (413, "upload_too_large")
    assert "0.06 MB" in reply.get_json()["error"]["message"]


@pytest.mark.promise("SECURITY 3")
@pytest.mark.parametrize("terminated", [False, True], ids=["with a length", "chunked"])
def test_a_body_far_above_the_cap_is_refused_without_being_kept(terminated: bool) -> None:
    body = Counting(part(b"\xff" * 80_000_000))
    environ = {"wsgi.input_terminated": True} if terminated else {"CONTENT_LENGTH": str(len(body.getvalue()))}
    reply = send(client(max_upload_mb=1), body, content_length=None, environ_overrides=environ)
    assert code(reply) == (413, "upload_too_large")
    assert body.taken < 60_000_000  # some is read and dropped, so that the client sees the answer


@pytest.mark.parametrize("cut", [f"--{BOUNDARY}", f"\r\n--{BOUNDARY[:-1]}", "\r"])
def test_a_boundary_inside_a_photo_stays_in_the_photo(cut: str) -> None:
    fake = FakeClassifier()
    photo = PHOTO + cut.encode() * 90_000  # more than is read at once
    assert send(client(fake), part(photo) + END).status_code == 200
    assert fake.asked == [photo]


@pytest.mark.promise("SECURITY 9")
def test_an_upload_is_never_written_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", refuse)
    assert send(client(), part(PHOTO + b"\0" * 5_000_000) + END).status_code == 200


@pytest.mark.parametrize(
    "end",
    [b"", f"\r\n--{BOUNDARY}".encode(), f"\r\n--{BOUNDARY}-".encode(), f"\n--{BOUNDARY}--".encode()],
    ids=["none", "half a boundary", "one dash", "another line end"],
)
def test_a_form_without_its_end_is_refused(end: bytes) -> None:
    assert code(send(client(), part(PHOTO)[:-2] + end)) == (400, "no_file")


@pytest.mark.parametrize(
    "parts",
    [part(b"text", 'name="model"') * 33, part(b"x" * 500_001, 'name="model"')],
    ids=["too many parts", "too long a text"],
)
@pytest.mark.parametrize("path", ["/predict", "/api/v1/classify"])
def test_a_form_of_more_than_its_photos_and_a_few_words_is_refused(path: str, parts: bytes) -> None:
    assert code(send(client(), parts + part(PHOTO) + END, path)) == (413, "upload_too_large")


def test_the_time_of_a_slow_upload_is_not_taken_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, later_s = {name: getattr(time, name) for name in ("monotonic", "perf_counter")}, 0.0
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name]() + later_s)

    class Slow(Counting):
        def readinto(self, buffer: Any) -> int:
            nonlocal later_s
            later_s = 30.0
            return super().readinto(buffer)

    class Noting(FakeClassifier):
        left_s = 0.0

        def classify(self, photo: bytes, deadline: Deadline, *words: Any, **options: Any) -> Prediction:
            self.left_s = max(self.left_s, deadline.left_s())
            return super().classify(photo, deadline, *words, **options)

    noting = Noting()
    reply = send(client(noting, request_deadline_s=60.0), Slow(part(PHOTO) + END))
    assert reply.status_code == 200
    assert reply.get_json()["timings_ms"]["receive"] >= 30_000
    assert noting.left_s > 45
