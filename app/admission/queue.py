"""How much is taken in at a time, in each process, and the refusal of what would be too much.

    connection ─ a thread of gunicorn ─ upload slot ─ upload ─ queue ─ turn ─ answer
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

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from flask import Flask, current_app, g, request

from app.admission.early_refusal import EarlyRefusals
from app.core.errors import Overloaded, Stopping
from app.core.http import marks
from app.core.metrics import Metrics
from app.core.settings import Settings

# For so long an admitted upload counts as queued; most are here sooner.
_COMING_S: Final = 0.25
NOBODY: Final = -1
# The weight of the newest turn in the recent pace.
_SMOOTHING: Final = 0.1


class AdmissionQueue:
    """At most so many at work; the others wait for their turn in the order in which they came.

    It is full while `waiting` wait, or are about to. Once it was, and until nobody waits, it is full with as
    many as are `at_work`, which is enough for those never to be idle. It is full as well while a new
    request would wait for longer than `wait_s` at the recent pace: better refused at once than then.
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
        # Each is set once it is its turn, which takes it out of here, or it never will be.
        self._waiting: deque[threading.Event] = deque()
        # Until when those who were let in, and are not here yet, count as waiting.
        self._coming: dict[int, float] = {}
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a request that came now would have to wait, or be refused."""
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
        now, waiting = self._now(), len(self._waiting)
        self._coming = {number: until for number, until in self._coming.items() if until > now}
        most = self._most_when_crowded if self._crowded else self._most_waiting
        if waiting + len(self._coming) >= most:
            return True
        stalled_s = now - self._last_end if waiting else 0.0
        return stalled_s + waiting * self._pace_s > self._wait_s

    def acquire(self, number: int = NOBODY) -> float:
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
            turn = threading.Event()
            started = self._now()
            if not self._waiting:
                self._last_end = started
            self._waiting.append(turn)
            self._crowded = self._crowded or len(self._waiting) == self._most_waiting
        turn.wait(self._wait_s)
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                self._crowded = self._crowded and bool(self._waiting)
                raise Stopping() if self._closed else Overloaded("wait")
        return self._now() - started

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                now = self._now()
                self._pace_s += _SMOOTHING * (now - self._last_end - self._pace_s)
                self._last_end = now
                self._waiting.popleft().set()
                self._crowded = self._crowded and bool(self._waiting)
            else:
                self._free += 1

    def close(self) -> None:
        """Send everybody away who still waits; those whose turn it is go on."""
        with self._lock:
            self._closed = True
            for turn in self._waiting:
                turn.set()


class UploadSlots:
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


class Admission:
    """One process's queue and upload slots, and what each request has of them, which is kept in `g`."""

    def __init__(self, app: Flask, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        stages = ("upload", "waiting", "work")
        self._uploading, self._waiting, self._working = map(metrics.in_flight.labels, stages)
        self.early = EarlyRefusals(app, metrics)
        self.queue = AdmissionQueue(settings.max_at_work, settings.max_waiting, settings.max_wait_s)
        self._slots = UploadSlots(settings.max_uploads, settings.max_at_work * settings.max_call_bytes)

    def expect(self, head: bytes, connection: socket.socket) -> None:
        """Count a request that is let in, and begins so, as queued until it is, but not for long."""
        pattern, _ = self.early.admitted
        if pattern.match(head):
            self.queue.expect(connection.fileno())

    def arrive(self) -> None:
        """Before anything of the body is read."""
        if not marks().admitted:
            return
        if not self.queue.expects(_number()) and self.queue.is_full:
            raise Overloaded("line")
        most = self._settings.max_call_bytes
        nbytes = min(request.content_length or most, most)
        self._slots.enter(nbytes)
        g.uploading, g.held_bytes = True, nbytes
        self._uploading.inc()

    def acquire(self) -> None:
        """Once the body is here: wait until the work on it may begin; raise Overloaded or Stopping."""
        self._end_upload()
        self._waiting.inc()
        try:
            g.line_ms = self.queue.acquire(_number()) * 1000
        finally:
            self._waiting.dec()
        g.has_turn = True
        self._working.inc()

    def leave(self, _: BaseException | None = None) -> None:
        """However the request ended."""
        if "held_bytes" in g:  # it was admitted
            self._end_upload()
            self.queue.forget(_number())
            self._slots.forget(g.pop("held_bytes"))
        self.keep_turn()()

    def keep_turn(self) -> Callable[[], None]:
        """Have the turn outlast the request, as of an answer in pieces; what is returned ends it, once."""
        has_turn = g.pop("has_turn", False)

        def end() -> None:
            if has_turn:
                self.queue.release()
                self._working.dec()

        return end

    def _end_upload(self) -> None:
        if g.pop("uploading", False):
            self._slots.received()
            self._uploading.dec()


def _number() -> int:
    """What the queue knows this request's connection by."""
    connection: socket.socket | None = request.environ.get("gunicorn.socket")
    return connection.fileno() if connection else NOBODY


def init_app(app: Flask, settings: Settings) -> None:
    admission = Admission(app, settings, app.extensions["metrics"])
    app.extensions["admission"] = admission
    app.before_request(admission.arrive)
    app.teardown_request(admission.leave)


def admission() -> Admission:
    """That of the app which answers this request."""
    found: Admission = current_app.extensions["admission"]
    return found
