"""How much is taken in at a time, in each process, and the refusal of what would be too much.

    connection ─ head ─ a thread of gunicorn ─ upload slot ─ upload ─ queue ─ turn ─ answer
                                               │                      │
                                               │                      └ MAX_AT_WORK at work, MAX_WAITING wait
                                               └ MAX_UPLOADS are being received

Before a request takes an upload slot, nothing of its body was read: there a refusal is cheap, and that is
where it happens while the queue is full. The queue has hysteresis: once it was full it is kept short until it
is empty. A burst may wait, but under a lasting overload a long queue only adds latency. A slow upload holds
a slot and no turn. gunicorn has more threads than all of these together (`Settings.threads`), so that one is
always free to refuse and to answer health checks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from flask import current_app, g, request
from werkzeug.exceptions import HTTPException

from app.admission.shares import Lines, Shares, Upload, UploadSlots, client_of, is_fair
from app.core.errors import Overloaded, Stopping
from app.core.http import API, JSON, FlaskApp, WsgiAnswer, given_or_new_id, marks, marks_of
from app.core.metrics import Metrics
from app.core.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# For so long an admitted upload counts as queued; most are here sooner.
_COMING_S: Final = 0.25
# What an upload is charged before any of it is here.
_FLOOR_BYTES: Final = 65_536
# The weight of the newest turn in the recent pace.
_SMOOTHING: Final = 0.1


class AdmissionQueue:
    """At most so many at work; the others wait, a line for each client, and the lines are served in turn.

    It is full for a client while its share (shares.py) of `waiting` wait, or are about to. Once it was, and
    until none of its requests waits, it is full for it with its share of as many as are `at_work`, which is
    enough for those never to be idle. It is full as well while a new request would wait for longer than
    `wait_s` at the recent pace: better refused at once than then.
    """

    def __init__(
        self, at_work: int, waiting: int, wait_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._now = now
        self._turns = Shares(at_work)
        self._most_waiting = waiting
        self._most_when_crowded = min(waiting, at_work)
        self._crowded: set[str] = set()
        self._wait_s = wait_s
        # Seconds between turns that end while others wait, and when the last of them ended.
        self._pace_s = 0.0
        self._last_end = 0.0
        # Each is set once it is its turn, which takes it out of here, or it never will be.
        self._waiting = Lines[threading.Event]()
        # Who was let in and is not here yet, and until when they count as waiting.
        self._coming: dict[object, tuple[str, float]] = {}
        self._closed = False

    def is_full(self, client: str) -> bool:
        with self._lock:
            return self._is_full(client)

    def expect(self, client: str) -> object:
        """Count somebody as waiting who is about to: their upload is still to be received. Raise Overloaded.

        What is returned stands for them in `acquire` and `forget`.
        """
        coming = object()
        with self._lock:
            if self._is_full(client):
                raise Overloaded("line")
            if not self._turns.allows(client):
                self._coming[coming] = client, self._now() + _COMING_S
        return coming

    def forget(self, coming: object) -> None:
        with self._lock:
            self._coming.pop(coming, None)

    def _is_full(self, client: str) -> bool:
        if self._turns.allows(client):
            return False
        now, waiting = self._now(), len(self._waiting)
        self._coming = {who: each for who, each in self._coming.items() if each[1] > now}
        if not self._has_room(client, [who for who, _ in self._coming.values()]):
            return True
        stalled_s = now - self._last_end if waiting else 0.0
        return stalled_s + self._waiting.before(client) * self._pace_s > self._wait_s

    def _has_room(self, client: str, coming: Sequence[str] = ()) -> bool:
        most = self._most_when_crowded if client in self._crowded else self._most_waiting
        free = most - len(self._waiting) - len(coming)
        return is_fair(self._waiting.of(client) + coming.count(client), free)

    def acquire(self, client: str, coming: object = None) -> float:
        """Wait for a turn; how many seconds that took. Raise Overloaded or Stopping."""
        with self._lock:
            self._coming.pop(coming, None)
            if self._turns.allows(client):
                self._turns.take(client)
                return 0.0
            if self._closed:
                raise Stopping
            if self._is_full(client):
                raise Overloaded("line")
            turn = threading.Event()
            started = self._now()
            if not self._waiting:
                self._last_end = started
            self._waiting.add(client, turn)
            if not self._has_room(client):
                self._crowded.add(client)
        turn.wait(self._wait_s)
        with self._lock:
            if self._waiting.remove(client, turn):
                self._uncrowd(client)
                raise Stopping() if self._closed else Overloaded("wait")
        return self._now() - started

    def release(self, client: str) -> None:
        with self._lock:
            if self._waiting:
                now = self._now()
                self._pace_s += _SMOOTHING * (now - self._last_end - self._pace_s)
                self._last_end = now
            self._turns.give_back(client)
            while found := self._waiting.next(self._turns.allows):
                whose, turn = found
                self._turns.take(whose)
                self._uncrowd(whose)
                turn.set()

    def _uncrowd(self, client: str) -> None:
        if not self._waiting.of(client):
            self._crowded.discard(client)

    def close(self) -> None:
        """Send everybody away who still waits; those whose turn it is go on."""
        with self._lock:
            self._closed = True
            for turn in self._waiting:
                turn.set()


class Admission:
    """One process's queue and upload slots, and what each request has of them, which is kept in `g`."""

    def __init__(self, app: FlaskApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._most_bytes = settings.max_call_bytes
        stages = ("upload", "waiting", "work")
        self._uploading, self._waiting, self._working = map(metrics.in_flight.labels, stages)
        self.queue = AdmissionQueue(settings.max_at_work, settings.max_waiting, settings.max_wait_s)
        self._slots = UploadSlots(settings.max_uploads, settings.max_at_work * settings.max_call_bytes)

    def refuse(self, environ: WSGIEnvironment) -> WsgiAnswer | None:
        """What a program posts while the queue is full, without what Flask does for a request.

        Through Flask a refusal takes several times as much of the CPU, which the photos then lack
        (docs/reliability.md). Scripts of other sites are for `hosts_and_cors`.
        """
        if not self.queue.is_full(client_of(environ["REMOTE_ADDR"])):
            return None
        path = environ["PATH_INFO"]
        is_json = path.startswith(API) or environ.get("HTTP_ACCEPT") == JSON
        if not is_json or "HTTP_ORIGIN" in environ:
            return None
        try:
            rule, _ = self._app.url_map.bind("").match(path, "POST", return_rule=True)
        except HTTPException:
            return None
        if not marks_of(self._app.view_functions[rule.endpoint]).admitted:
            return None
        error = Overloaded("line")
        self._metrics.refusals.labels(error.at).inc()
        self._metrics.requests.labels(rule.rule, "POST", error.status).inc()
        number = given_or_new_id(environ.get("HTTP_X_REQUEST_ID", ""))
        said = {"error": {"code": error.code, "message": str(error), "request_id": number}}
        headers = {
            "Content-Type": JSON,
            "X-Request-ID": number,
            "Retry-After": str(error.retry_after_s),
            "Cache-Control": "no-store",
            "Connection": "close",  # nothing of the body was read
        }
        return "503 Service Unavailable", headers, json.dumps(said).encode() + b"\n"

    def arrive(self) -> None:
        """Before anything of the body is read."""
        if not marks().admitted:
            return
        client = _client()
        g.coming = self.queue.expect(client)
        said = min(request.content_length or 0, self._most_bytes)
        g.upload = Upload(self._slots, client, said, min(_FLOOR_BYTES, self._most_bytes))
        self._uploading.inc()

    def acquire(self) -> None:
        """Once the body is here: wait until the work on it may begin; raise Overloaded or Stopping."""
        self._end_upload()
        self._waiting.inc()
        try:
            client = _client()
            g.line_ms = self.queue.acquire(client, g.get("coming")) * 1000
        finally:
            self._waiting.dec()
        g.turn_of = client
        self._working.inc()

    def leave(self, _: BaseException | None = None) -> None:
        """However the request ended."""
        if "coming" in g:
            self.queue.forget(g.pop("coming"))
        if "upload" in g:
            self._end_upload()
            g.pop("upload").forget()
        self.keep_turn()()

    def keep_turn(self) -> Callable[[], None]:
        """Have the turn outlast the request, as of an answer in pieces; what is returned ends it, once."""
        client: str | None = g.pop("turn_of", None)

        def end() -> None:
            if client is not None:
                self.queue.release(client)
                self._working.dec()

        return end

    def _end_upload(self) -> None:
        upload: Upload | None = g.get("upload")
        if upload and upload.is_coming:
            upload.received()
            self._uploading.dec()


def _client() -> str:
    return client_of(request.remote_addr or "")


def init_app(app: FlaskApp, settings: Settings) -> None:
    admission = Admission(app, settings, app.extensions["metrics"])
    app.extensions["admission"] = admission
    app.before_flask["POST"].append(admission.refuse)
    app.before_request(admission.arrive)
    app.teardown_request(admission.leave)


def admission() -> Admission:
    """That of the app which answers this request."""
    found: Admission = current_app.extensions["admission"]
    return found
