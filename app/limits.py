"""How much is taken in at a time, in each process, and the refusal of what would be too much.

    connection ─ a thread of gunicorn ─ door ─ upload ─ line ─ turn ─ answer
                                        │               │
                                        │               └ MAX_AT_WORK have their turn, MAX_WAITING wait for it
                                        └ MAX_UPLOADS are being received

At the door nothing of the body was read: there a refusal is cheap, and that is where it happens when the
line is full. Whoever sends slowly holds a place among the uploads and no turn. gunicorn has more threads
than all of these together (`Settings.threads`), so that one is always free to refuse and to say how
things are.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from flask import Flask, current_app, g, request

from app.errors import Overloaded, Stopping
from app.metrics import Metrics
from app.settings import Settings
from app.web import READ_BODIES


@dataclass
class _Place:
    """Somebody's place in the line; `called` once it is their turn, or it never will be."""

    called: threading.Event = field(default_factory=threading.Event)
    has_turn: bool = False


class Line:
    """At most so many at work; the others wait for their turn in the order in which they came."""

    def __init__(self, at_work: int, waiting: int) -> None:
        self._lock = threading.Lock()
        self._free = at_work
        self._most_waiting = waiting
        self._waiting: deque[_Place] = deque()
        self._closed = False

    @property
    def is_full(self) -> bool:
        return not self._free and len(self._waiting) >= self._most_waiting

    def take_turn(self, seconds: float) -> float:
        """Wait for a turn, at most `seconds`; how long it took. Raise Overloaded or Stopping."""
        with self._lock:
            if self._free:
                self._free -= 1
                return 0.0
            if self._closed:
                raise Stopping
            if self.is_full:
                raise Overloaded("line")
            place = _Place()
            self._waiting.append(place)
        started = time.monotonic()
        place.called.wait(seconds)
        with self._lock:
            if not place.has_turn:
                if self._closed:
                    raise Stopping
                self._waiting.remove(place)
                raise Overloaded("wait")
        return time.monotonic() - started

    def end_turn(self) -> None:
        with self._lock:
            if self._waiting:
                self._call(self._waiting.popleft(), has_turn=True)
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


class Limits:
    """One process's door and line, and what each request has of them, which is kept in `g`."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._line = Line(settings.max_at_work, settings.max_waiting)
        self._door = Door(settings.max_uploads, settings.max_at_work * settings.max_call_bytes)

    def arrive(self) -> None:
        """Before anything of the body is read."""
        if request.endpoint not in READ_BODIES:
            return
        try:
            if self._line.is_full:
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
            g.line_ms = self._line.take_turn(self._settings.max_wait_s) * 1000
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

    def _count_refusal(self, at: str) -> None:
        self._metrics.refusals.labels(at).inc()


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
