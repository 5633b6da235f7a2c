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

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Final, cast

from flask import Flask, current_app, g, request

from app.admission.early_refusal import EarlyRefusals
from app.admission.shares import Lines, Shares, client_of, is_fair
from app.core.errors import Overloaded, Stopping
from app.core.http import marks
from app.core.metrics import Metrics
from app.core.settings import Settings

_FORWARDED: Final = re.compile(rb"\r\nx-forwarded-for:([^\r]*)", re.I)
# For so long an admitted upload counts as queued; most are here sooner.
_COMING_S: Final = 0.25
NOBODY: Final = -1
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
        self._coming: dict[int, tuple[str, float]] = {}
        self._closed = False

    def is_busy(self, client: str) -> bool:
        """Whether a request of `client` that came now would have to wait, or be refused."""
        return not self._turns.allows(client)

    def is_full(self, client: str) -> bool:
        with self._lock:
            return self._is_full(client)

    def expect(self, number: int, client: str) -> None:
        """Count somebody as waiting who is about to: their upload is still to be received."""
        with self._lock:
            self._coming[number] = client, self._now() + _COMING_S

    def expects(self, number: int) -> bool:
        return number in self._coming

    def forget(self, number: int) -> None:
        with self._lock:
            self._coming.pop(number, None)

    def _is_full(self, client: str) -> bool:
        if self._turns.allows(client):
            return False
        now, waiting = self._now(), len(self._waiting)
        self._coming = {number: each for number, each in self._coming.items() if each[1] > now}
        if not self._has_room(client, [who for who, _ in self._coming.values()]):
            return True
        stalled_s = now - self._last_end if waiting else 0.0
        return stalled_s + self._waiting.before(client) * self._pace_s > self._wait_s

    def _has_room(self, client: str, coming: Sequence[str] = ()) -> bool:
        most = self._most_when_crowded if client in self._crowded else self._most_waiting
        free = most - len(self._waiting) - len(coming)
        return is_fair(self._waiting.of(client) + coming.count(client), free)

    def acquire(self, client: str, number: int = NOBODY) -> float:
        """Wait for a turn; how many seconds that took. Raise Overloaded or Stopping."""
        with self._lock:
            self._coming.pop(number, None)
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


class UploadSlots:
    """Uploads that are being received: so many, and so many bytes in memory with those that wait.

    Both are shared (shares.py). What counts is what has arrived, and not what a client says will come.
    """

    def __init__(self, uploads: int, held_bytes: int) -> None:
        self._lock = threading.Lock()
        self._uploads = Shares(uploads)
        self._most_bytes = held_bytes
        self._bytes = Shares(held_bytes)

    def enter(self, client: str, said: int, floor: int = 0) -> None:
        """Begin an upload that is said to have so many bytes, which could be held; `floor` of them are."""
        with self._lock:
            if not self._uploads.allows(client):
                raise Overloaded("uploads")
            self._check(client, max(said, floor), 0)
            self._uploads.take(client)
            self._bytes.take(client, floor)

    def hold(self, client: str, nbytes: int, already: int) -> None:
        """`nbytes` more of an upload have arrived, of which `already` so many are held."""
        with self._lock:
            self._check(client, nbytes, already)
            self._bytes.take(client, nbytes)

    def _check(self, client: str, nbytes: int, already: int) -> None:
        is_alone = self._bytes.free + already == self._most_bytes
        if not (is_alone or self._bytes.allows(client, nbytes)):
            raise Overloaded("memory")

    def received(self, client: str) -> None:
        with self._lock:
            self._uploads.give_back(client)

    def forget(self, client: str, nbytes: int) -> None:
        with self._lock:
            self._bytes.give_back(client, nbytes)


class Upload:
    """What one request has of the slots."""

    def __init__(self, slots: UploadSlots, client: str, said: int, floor: int) -> None:
        slots.enter(client, said, floor)
        self._slots = slots
        self._client = client
        self._held = floor
        self.is_coming = True

    def hold(self, nbytes: int) -> None:
        self._slots.hold(self._client, nbytes, self._held)
        self._held += nbytes

    def received(self) -> None:
        self.is_coming = False
        self._slots.received(self._client)

    def forget(self) -> None:
        self._slots.forget(self._client, self._held)


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
    """One process's queue and upload slots, and what each request has of them, which is kept in `g`."""

    def __init__(self, app: Flask, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        stages = ("upload", "waiting", "work")
        self._uploading, self._waiting, self._working = map(metrics.in_flight.labels, stages)
        self.early = EarlyRefusals(app, metrics)
        self.queue = AdmissionQueue(settings.max_at_work, settings.max_waiting, settings.max_wait_s)
        self._slots = UploadSlots(settings.max_uploads, settings.max_at_work * settings.max_call_bytes)

    def client(self, head: bytes, peer: str) -> str:
        """Who sends what begins with `head`: the peer, or whom the proxy names that is trusted."""
        if hops := self._settings.trusted_proxies:
            lines = _FORWARDED.findall(head, 0, head.find(b"\r\n\r\n") + 2)
            names = b",".join(lines).decode("latin-1").split(",")
            if len(names) >= hops and (name := names[-hops].strip()):
                return client_of(name)
        return client_of(peer)

    def expect(self, head: bytes, connection: socket.socket, client: str) -> None:
        """Count a request that is let in, and begins so, as queued until it is, but not for long."""
        pattern, _ = self.early.admitted
        if pattern.match(head):
            self.queue.expect(connection.fileno(), client)

    def arrive(self) -> None:
        """Before anything of the body is read."""
        if not marks().admitted:
            return
        client = _client()
        if not self.queue.expects(_number()) and self.queue.is_full(client):
            raise Overloaded("line")
        most = self._settings.max_call_bytes
        said = min(request.content_length or 0, most)
        g.upload = Upload(self._slots, client, said, min(_FLOOR_BYTES, most))
        self._uploading.inc()

    def charged(self, body: IO[bytes]) -> IO[bytes]:
        """The request's body, for who keeps what is read of it; reading too much raises Overloaded."""
        return cast(IO[bytes], ChargedBody(body, g.upload))

    def acquire(self) -> None:
        """Once the body is here: wait until the work on it may begin; raise Overloaded or Stopping."""
        self._end_upload()
        self._waiting.inc()
        try:
            client = _client()
            g.line_ms = self.queue.acquire(client, _number()) * 1000
        finally:
            self._waiting.dec()
        g.turn_of = client
        self._working.inc()

    def leave(self, _: BaseException | None = None) -> None:
        """However the request ended."""
        if "upload" in g:  # it was admitted
            self._end_upload()
            self.queue.forget(_number())
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
