"""How much is taken in at a time, in each process, and the refusal of what would be too much.

    connection ─ a thread of gunicorn ─ door ─ upload ─ line ─ turn ─ answer
                                        │               │
                                        │               └ MAX_AT_WORK have their turn, MAX_WAITING wait for it
                                        └ MAX_UPLOADS are being received

At the door nothing of the body was read: there a refusal is cheap, and that is where it happens when the
line is full. A line that was full is kept short until it was empty: a burst may wait, but where more comes
than can be done, a long line only makes everybody wait for longer. Whoever sends slowly holds a place among
the uploads and no turn. gunicorn has more threads than all of these together (`Settings.threads`), so that
one is always free to refuse and to say how things are.
"""

from __future__ import annotations

import functools
import json
import re
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from flask import Flask, current_app, g, request
from prometheus_client import Counter

from app.errors import Overloaded, Stopping
from app.metrics import Metrics
from app.settings import Settings
from app.web import READ_BODIES

# For so long an upload that was let in counts as one of the line; most are here sooner.
_COMING_S: Final = 0.25
NOBODY: Final = -1
# The weight of the newest turn in the pace of late.
_LATELY: Final = 0.1
_PHOTO_FOR_A_PROGRAM: Final = re.compile(
    rb"POST (/predict|/compare|/digits|/api/v1/(?:classify|digits|explain))[? ]"
)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,12})\r\n", re.I)
_REQUEST_ID: Final = re.compile(rb"\r\nx-request-id: *([A-Za-z0-9._:-]{1,64})\r\n", re.I)
_WANTS_JSON: Final = re.compile(rb"\r\naccept: *application/json *\r\n", re.I)
# Another site's script may read the answer only if it says so, which is for `access` to know.
_ORIGIN: Final = re.compile(rb"\r\norigin:", re.I)
_ANSWER: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nX-Request-ID: %b\r\n"
    b"Retry-After: %d\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b%b%b"
)
# What is around the request's id, which has no character that JSON would write in another way.
_BEFORE_ID, _AFTER_ID = (
    json.dumps({"error": {"code": Overloaded.code, "message": str(Overloaded("line")), "request_id": "|"}})
    .encode()
    .split(b"|")
)


@dataclass
class _Place:
    """Somebody's place in the line; `called` once it is their turn, or it never will be."""

    called: threading.Event = field(default_factory=threading.Event)
    has_turn: bool = False


class Line:
    """At most so many at work; the others wait for their turn in the order in which they came.

    It is full where as many wait, or are about to, as may: `waiting`, but from when so many did until
    nobody does only as many as are `at_work`, which is enough for those never to be idle. It is full as
    well where those who came now would wait for longer than `wait_s` at the pace of late: better refused
    at once than then.
    """

    def __init__(
        self, at_work: int, waiting: int, wait_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._now = now
        self._free = at_work
        self._most_waiting = waiting
        self._most_when_crowded = min(waiting, at_work)
        self._crowded = False
        self._wait_s = wait_s
        # Seconds between turns that end while others wait, and when the last of them ended.
        self._pace_s = 0.0
        self._last_end = 0.0
        self._waiting: deque[_Place] = deque()
        # Until when those who were let in, and are not here yet, count as waiting.
        self._coming: dict[int, float] = {}
        self._closed = False

    @property
    def is_busy(self) -> bool:
        return not self._free

    @property
    def is_full(self) -> bool:
        with self._lock:
            return self._is_full()

    def expect(self, number: int) -> None:
        """Count somebody as waiting who is about to: their upload is still to be received."""
        with self._lock:
            self._coming[number] = self._now() + _COMING_S

    def expects(self, number: int) -> bool:
        return number in self._coming

    def forget(self, number: int) -> None:
        with self._lock:
            self._coming.pop(number, None)

    def _is_full(self) -> bool:
        if self._free:
            return False
        waiting = len(self._waiting)
        most = self._most_when_crowded if self._crowded else self._most_waiting
        if waiting + self._count_coming() >= most:
            return True
        stalled_s = self._now() - self._last_end if waiting else 0.0
        return stalled_s + waiting * self._pace_s > self._wait_s

    def _count_coming(self) -> int:
        now = self._now()
        for number in [number for number, until in self._coming.items() if until <= now]:
            del self._coming[number]
        return len(self._coming)

    def take_turn(self, number: int = NOBODY) -> float:
        """Wait for a turn; how many seconds that took. Raise Overloaded or Stopping."""
        with self._lock:
            self._coming.pop(number, None)
            if self._free:
                self._free -= 1
                return 0.0
            if self._closed:
                raise Stopping
            if self._is_full():
                raise Overloaded("line")
            place = _Place()
            started = self._now()
            if not self._waiting:
                self._last_end = started
            self._waiting.append(place)
            self._crowded = self._crowded or len(self._waiting) == self._most_waiting
        place.called.wait(self._wait_s)
        with self._lock:
            if not place.has_turn:
                if self._closed:
                    raise Stopping
                self._waiting.remove(place)
                self._crowded = self._crowded and bool(self._waiting)
                raise Overloaded("wait")
        return self._now() - started

    def end_turn(self) -> None:
        with self._lock:
            if self._waiting:
                now = self._now()
                self._pace_s += _LATELY * (now - self._last_end - self._pace_s)
                self._last_end = now
                self._call(self._waiting.popleft(), has_turn=True)
                self._crowded = self._crowded and bool(self._waiting)
            else:
                self._free += 1

    def close(self) -> None:
        """Send everybody away who still waits; those whose turn it is go on."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._call(self._waiting.popleft(), has_turn=False)

    @staticmethod
    def _call(place: _Place, *, has_turn: bool) -> None:
        place.has_turn = has_turn
        place.called.set()


class Door:
    """Uploads that are being received: so many, and so many bytes in memory with those that wait."""

    def __init__(self, uploads: int, held_bytes: int) -> None:
        self._lock = threading.Lock()
        self._free = uploads
        self._most_bytes = held_bytes
        self._bytes = 0

    def enter(self, nbytes: int) -> None:
        with self._lock:
            if not self._free:
                raise Overloaded("uploads")
            if self._bytes and self._bytes + nbytes > self._most_bytes:
                raise Overloaded("memory")
            self._free -= 1
            self._bytes += nbytes

    def received(self) -> None:
        with self._lock:
            self._free += 1

    def forget(self, nbytes: int) -> None:
        with self._lock:
            self._bytes -= nbytes


@dataclass(frozen=True)
class Refusal:
    """The whole answer to a request of that many bytes, none of which was looked at but the head."""

    answer: bytes
    request_bytes: int


class Limits:
    """One process's door and line, and what each request has of them, which is kept in `g`."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._line = Line(settings.max_at_work, settings.max_waiting, settings.max_wait_s)
        self._door = Door(settings.max_uploads, settings.max_at_work * settings.max_call_bytes)

    @property
    def is_busy(self) -> bool:
        """Whether somebody who came now would have to wait, or be refused."""
        return self._line.is_busy

    @property
    def is_full(self) -> bool:
        return self._line.is_full

    def expect(self, head: bytes, connection: socket.socket) -> None:
        """Count a request that is let in, and begins so, as one of the line until it is, but not for long."""
        if _PHOTO_FOR_A_PROGRAM.match(head):
            self._line.expect(connection.fileno())

    def refusal(self, head: bytes) -> Refusal | None:
        """What to answer to a request that begins so; None if it has to be looked at more closely."""
        match = _PHOTO_FOR_A_PROGRAM.match(head)
        end = head.find(b"\r\n\r\n") + 2
        length = _LENGTH.search(head, 0, end)
        if match is None or length is None or _ORIGIN.search(head, 0, end):
            return None
        if not (match[1].startswith(b"/api/") or _WANTS_JSON.search(head, 0, end)):
            return None
        given = _REQUEST_ID.search(head, 0, end)
        name = given[1] if given else uuid.uuid4().hex.encode()
        for counter in self._counters_of_refusals(match[1]):
            counter.inc()
        nbytes = len(_BEFORE_ID) + len(name) + len(_AFTER_ID)
        body = (_BEFORE_ID, name, _AFTER_ID)
        return Refusal(_ANSWER % (name, Overloaded.retry_after_s, nbytes, *body), end + 2 + int(length[1]))

    def arrive(self) -> None:
        """Before anything of the body is read."""
        if request.endpoint not in READ_BODIES:
            return
        try:
            if not self._line.expects(_number()) and self._line.is_full:
                raise Overloaded("line")
            most = self._settings.max_call_bytes
            nbytes = min(request.content_length or most, most)
            self._door.enter(nbytes)
        except Overloaded as exc:
            self._count_refusal(exc.at)
            raise
        g.uploading, g.held_bytes = True, nbytes
        self._metrics.in_flight.labels("upload").inc()

    def take_turn(self) -> None:
        """Once the body is here: wait until the work on it may begin, which `leave` ends."""
        self._end_upload()
        self._metrics.in_flight.labels("waiting").inc()
        try:
            g.line_ms = self._line.take_turn(_number()) * 1000
        except Overloaded as exc:
            self._count_refusal(exc.at)
            raise
        finally:
            self._metrics.in_flight.labels("waiting").dec()
        g.has_turn = True
        self._metrics.in_flight.labels("work").inc()

    def leave(self, _: BaseException | None = None) -> None:
        """However the request ended."""
        self._end_upload()
        self._line.forget(_number())
        self._door.forget(g.pop("held_bytes", 0))
        self.keep_turn()()

    def keep_turn(self) -> Callable[[], None]:
        """Have the turn outlast the request; what is returned ends it, and is to be called once."""
        if not g.pop("has_turn", False):
            return lambda: None

        def end() -> None:
            self._line.end_turn()
            self._metrics.in_flight.labels("work").dec()

        return end

    def close(self) -> None:
        self._line.close()

    def _end_upload(self) -> None:
        if g.pop("uploading", False):
            self._door.received()
            self._metrics.in_flight.labels("upload").dec()

    @functools.cache  # noqa: B019 - there is one of these in a process, and looking them up takes longest
    def _counters_of_refusals(self, route: bytes) -> tuple[Counter, Counter]:
        answered = self._metrics.requests.labels(route.decode(), "POST", Overloaded.status)
        return self._metrics.refusals.labels("line"), answered

    def _count_refusal(self, at: str) -> None:
        self._metrics.refusals.labels(at).inc()


def _number() -> int:
    """What the line knows this request's connection by."""
    connection: socket.socket | None = request.environ.get("gunicorn.socket")
    return connection.fileno() if connection else NOBODY


def init_app(app: Flask, settings: Settings) -> None:
    limits = Limits(settings, app.extensions["metrics"])
    app.extensions["limits"] = limits
    app.before_request(limits.arrive)
    app.teardown_request(limits.leave)


def take_turn() -> None:
    """Wait until the work on this request may begin; raise Overloaded or Stopping."""
    limits: Limits = current_app.extensions["limits"]
    limits.take_turn()


def keep_turn() -> Callable[[], None]:
    """For an answer that is still being made when Flask is done with its request: what ends its turn."""
    limits: Limits = current_app.extensions["limits"]
    return limits.keep_turn()
