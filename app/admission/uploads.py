"""What each request has of the slots and the queue, and the bytes of its upload: capped while they are read,
held in memory, never written to disk."""

from __future__ import annotations

import contextlib
import functools
import json
import sched
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Final

from flask import current_app, g, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from app.admission import page_turns
from app.admission.queue import AdmissionQueue, Upload, UploadSlots, client_of, client_of_request, queues
from app.core.errors import BrokenBody, Overloaded, RefusedRequest, ServingError, UploadTooSlow
from app.core.http import API, JSON, FlaskApp, WsgiAnswer, given_or_new_id, marks, marks_of
from app.core.metrics import Metrics
from app.core.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

FIELD: Final = "file"
# What a multipart body may hold around the photos: boundaries, headers, a few other fields.
WRAPPING_BYTES: Final = 65_536
MAX_OTHER_PARTS: Final = 16
# What an upload is charged before any of it is here.
_FLOOR_BYTES: Final = 65_536
# A client that is still sending does not read the answer, so a little more than allowed is read
# and discarded first; a client that sends even more may find the connection closed.
_DRAINED_BYTES: Final = 50_000_000
# What reading a body raises whose chunks are invalid, or whose connection is lost.
_BROKEN: Final = (ParseException, OSError)
# By so much a slow upload may be given up later than it could be.
_LOOKS_EVERY_S: Final = 0.1


@functools.cache
def _late() -> sched.scheduler:
    """Gives up, from one thread for all, what is not done in time.

    A timer of its own for every request would start a thread for each, and starting one waits until it runs.
    """
    late = sched.scheduler()

    def watch() -> None:
        while True:
            time.sleep(_LOOKS_EVERY_S)
            late.run(blocking=False)

    threading.Thread(target=watch, name="deadlines", daemon=True).start()
    return late


@contextlib.contextmanager
def within(seconds: float, give_up: Callable[[], None]) -> Iterator[None]:
    """Call `give_up`, from another thread, if the block lasts longer than `seconds`."""
    call = _late().enter(seconds, 0, give_up)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # it was called
            _late().cancel(call)


class ChargedBody:
    """A request's body whose bytes are held against its client as they are read, a megabyte at most late."""

    def __init__(self, body: IO[bytes], upload: Upload) -> None:
        self._body = body
        self._upload = upload

    def read(self, size: int) -> bytes:
        data = self._body.read(size)
        if data:
            self._upload.hold(len(data))
        return data


class Admission:
    """One process's queues and upload slots, and what each request has of them, which is kept in `g`."""

    def __init__(self, app: FlaskApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._most_bytes = settings.max_call_bytes
        stages = ("upload", "waiting", "work")
        self._uploading, self._waiting, self._working = map(metrics.in_flight.labels, stages)
        self.queues = queues(settings)
        self._slots = UploadSlots(settings.max_uploads, settings.max_at_work * settings.max_call_bytes)

    def refuse(self, environ: WSGIEnvironment) -> WsgiAnswer | None:
        """What a program posts while the queue is full, without what Flask does for a request.

        Through Flask a refusal takes several times as much of the CPU, which the photos then lack
        (docs/reliability.md). Scripts of other sites are for `hosts_and_cors`.
        """
        path = environ["PATH_INFO"]
        is_json = path.startswith(API) or environ.get("HTTP_ACCEPT") == JSON
        if (
            not is_json
            or "HTTP_ORIGIN" in environ
            or path not in self._queue_of
            or not self._queue_of[path].is_full(client_of(environ["REMOTE_ADDR"]))
        ):
            return None
        error = Overloaded("line")
        self._metrics.refusals.labels(error.at).inc()
        self._metrics.requests.labels(path, "POST", error.status).inc()
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

    @functools.cached_property
    def _queue_of(self) -> dict[str, AdmissionQueue]:
        """By the paths without a name in them."""
        views = self._app.view_functions
        kinds = {
            each.rule: marks_of(views[each.endpoint]).admitted for each in self._app.url_map.iter_rules()
        }
        return {rule: self.queues[kind] for rule, kind in kinds.items() if kind}

    def close(self) -> None:
        """Send away all who wait for a turn."""
        for queue in self.queues.values():
            queue.close()

    def arrive(self) -> None:
        """Before anything of the body is read."""
        client = client_of(request.remote_addr or "")
        if not marks().admitted:
            page_turns.begin(self.queues["pages"], client)
            return
        g.coming = self._queue().expect(client)
        said = min(request.content_length or 0, self._most_bytes)
        g.upload = Upload(self._slots, client, said, min(_FLOOR_BYTES, self._most_bytes))
        self._uploading.inc()

    def acquire(self) -> None:
        """Once the body is here: wait until the work on it may begin; raise Overloaded or Stopping."""
        self._end_upload()
        self._waiting.inc()
        queue, client = self._queue(), client_of_request()
        try:
            g.line_ms = queue.acquire(client, g.get("coming")) * 1000
        finally:
            self._waiting.dec()
        g.turn = queue, client
        self._working.inc()

    def leave(self, _: BaseException | None = None) -> None:
        """However the request ended."""
        if "coming" in g:
            self._queue().forget(g.pop("coming"))
        if "upload" in g:
            self._end_upload()
            g.pop("upload").forget()
        if "page_of" in g:
            page_turns.end(self.queues["pages"])
        self.keep_turn()()

    def keep_turn(self) -> Callable[[], None]:
        """Have the turn outlast the request, as of an answer in pieces; what is returned ends it, once."""
        turn: tuple[AdmissionQueue, str] | None = g.pop("turn", None)

        def end() -> None:
            if turn is not None:
                queue, client = turn
                queue.release(client)
                self._working.dec()

        return end

    def _queue(self) -> AdmissionQueue:
        """That of this request; what brings no body and takes a turn by itself is about photos."""
        return self.queues[marks().admitted or "photos"]

    def _end_upload(self) -> None:
        upload: Upload | None = g.get("upload")
        if upload and upload.is_coming:
            upload.received()
            self._uploading.dec()


def init_app(app: FlaskApp, settings: Settings) -> None:
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes + WRAPPING_BYTES
    app.config["MAX_FORM_PARTS"] = MAX_OTHER_PARTS
    admission = Admission(app, settings, app.extensions["metrics"])
    app.extensions["admission"] = admission
    app.before_flask["POST"] = admission.refuse
    app.before_request(admission.arrive)
    app.teardown_request(admission.leave)


def admission() -> Admission:
    """That of the app which answers this request."""
    found: Admission = current_app.extensions["admission"]
    return found


@contextlib.contextmanager
def receiving(settings: Settings, too_large: str) -> Iterator[None]:
    """Around whatever reads the body, and that alone: for a limited time, not more than allowed, and timed.

    What follows is the work on the photos, for which this waits until it is the request's turn.
    """
    started = time.perf_counter()
    body = request.environ["wsgi.input"]
    with _in_time(settings.upload_deadline_s):
        request.environ["wsgi.input"] = ChargedBody(body, g.upload)
        try:
            yield
        except (RequestEntityTooLarge, ServingError) as exc:
            request.environ["wsgi.input"] = body
            _drain()
            raise (
                exc if isinstance(exc, ServingError) else RefusedRequest("upload_too_large", too_large)
            ) from None
    g.receive_ms = (time.perf_counter() - started) * 1000
    admission().acquire()


def discard(settings: Settings) -> None:
    """Read and discard what a client still sends, so that it reads the refusal which follows.

    That may take long, and is only done where the request has an upload slot.
    """
    if not marks().admitted:
        return
    gone = (ClientDisconnected, UploadTooSlow, BrokenBody)
    with contextlib.suppress(*gone), _in_time(settings.upload_deadline_s):
        _drain()


def photo_too_large(settings: Settings) -> str:
    return f"the photo is larger than {settings.max_upload_mb:g} MB: send a smaller one, or save it as JPEG"


def _drain() -> None:
    stream, left = request.environ["wsgi.input"], _DRAINED_BYTES
    if request.content_length is None and not request.environ.get("wsgi.input_terminated"):
        return
    left = min(left, request.content_length or left)
    with contextlib.suppress(*_BROKEN):
        while left > 0 and (chunk := stream.read(min(left, 65_536))):
            left -= len(chunk)


@contextlib.contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Let a client send for `seconds`: then no more is read, so that it does not keep a thread busy.

    gunicorn waits for a request's body for ever; it hands out the socket, and one whose reading
    side is shut down reads as ended.
    """
    connection: socket.socket | None = request.environ.get("gunicorn.socket")
    if connection is None:
        yield
        return
    timed_out = threading.Event()

    def hang_up() -> None:
        timed_out.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)

    try:
        with within(seconds, hang_up):
            yield
    except ClientDisconnected:
        current_app.logger.info("the client ended its upload early")
        if not timed_out.is_set():
            raise
    except _BROKEN as exc:
        if not timed_out.is_set():
            raise BrokenBody("the request's body has invalid chunks, or its connection was lost") from exc
    if timed_out.is_set():
        raise UploadTooSlow(f"the photo did not arrive within {seconds:g} s: send a smaller one")
