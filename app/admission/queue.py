"""Slots for uploads, and the lines for a turn at the work; how both are shared is gourmet.runtime.turns'.

    connection ─ head ─ a thread of gunicorn ─ upload slot ─ upload ─ queue ─ turn ─ answer
                                               │                      └ MAX_AT_WORK at work, MAX_WAITING wait
                                               └ MAX_UPLOADS are being received

A client is an address, or of IPv6 the /64 that a subscriber is given; at a turn, a known key that it sent.
Photos, texts, heat maps and pages have a queue each. gunicorn has more threads than all of these together, so
that one is always free to refuse, which is cheap before anything of a body was read.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from flask import g, request

from app.core.errors import Overloaded, Stopping
from app.core.settings import Settings
from gourmet.client.deadline import Deadline
from gourmet.pictures import decoders
from gourmet.pictures.decode import from_base64, identify, is_harmless
from gourmet.runtime.turns import Lines, Shares, is_fair

# For so long an admitted upload counts as queued; most are here sooner.
_COMING_S: Final = 0.25
# A client that only says that it sends no more looks like one that left.
_HALF_CLOSED_S: Final = 1.0
# Of the places for photos, beside others: two workers' are about as many as Triton works on at a time.
_OF_PHOTOS_BESIDE: Final = 4
# Some proxies say the port too, which is another for each connection.
_PORT: Final = re.compile(r"^\[(.+)\](?::\d+)?$|^([\d.]+):\d+$")
# The weight of the newest turn in the recent pace.
_SMOOTHING: Final = 0.1


@functools.lru_cache(4096)
def client_of(address: str) -> str:
    address = _PORT.sub(r"\1\2", address)
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # of a Unix socket, or a proxy's "unknown"
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or f"{int(found) >> 64:x}/64")


def client_of_request() -> str:
    """A key that is known here, or else an address, as all is before keys are looked at."""
    return g.get("client") or client_of(request.remote_addr or "")


def deadline_of_request(seconds: float) -> Deadline:
    """Of the answer to this request."""
    client = client_of_request()
    # The same in all workers for a key or else an address, which itself is told to nobody.
    told = hashlib.blake2b(client.encode(), digest_size=8).hexdigest()
    return Deadline(seconds, _client_left(), told)


def _client_left() -> Callable[[], bool]:
    """What tells, until this request is answered, whether its client has disconnected."""
    connection = request.environ.get("gunicorn.socket")
    if connection is None:
        return lambda: False
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    left_at = float("inf")

    def left() -> bool:
        nonlocal left_at
        now = time.monotonic()
        if poll.poll(0):
            left_at = min(left_at, now)
        return now >= left_at + _HALF_CLOSED_S

    return left


class UploadSlots:
    """Uploads that are being received: so many, and so many bytes in memory with those that wait.

    What counts is what has arrived, and not what a client says will come.
    """

    def __init__(self, uploads: int, held_bytes: int) -> None:
        self.lock = threading.Lock()
        self.most_bytes = held_bytes
        self.uploads, self.bytes = Shares(uploads), Shares(held_bytes)


class Upload:
    """What one request has of the slots, from before anything of its body is read."""

    def __init__(self, slots: UploadSlots, client: str, said: int, floor: int = 0) -> None:
        """Of an upload that is said to have so many bytes, `floor` are held at once. Raise Overloaded."""
        self._slots, self._client = slots, client
        self._held = 0
        self.is_coming = True
        with slots.lock:
            if not slots.uploads.allows(client):
                raise Overloaded("uploads")
            self._check(max(said, floor))
            slots.uploads.take(client)
            slots.bytes.take(client, floor)
        self._held = floor

    def hold(self, nbytes: int) -> None:
        """`nbytes` more have arrived."""
        with self._slots.lock:
            self._check(nbytes)
            self._slots.bytes.take(self._client, nbytes)
        self._held += nbytes

    def _check(self, nbytes: int) -> None:
        free = self._slots.bytes
        is_alone = free.free + self._held == self._slots.most_bytes
        if not (is_alone or free.allows(self._client, nbytes)):
            raise Overloaded("memory")

    def received(self) -> None:
        self.is_coming = False
        with self._slots.lock:
            self._slots.uploads.give_back(self._client)

    def forget(self) -> None:
        with self._slots.lock:
            self._slots.bytes.give_back(self._client, self._held)


class AdmissionQueue:
    """At most so many at work; the others wait, a line for each client, and the lines are served in turn.

    It is full for a client while its share of `waiting` wait, or are about to. Once it was, and
    until none of its requests waits, it is full for it with its share of as many as are `at_work`, which is
    enough for those never to be idle. It is full as well while a new request would wait for longer than
    `wait_s` at the recent pace: better refused at once than then. Of those at work a client that is not alone
    has at most so many `beside` others, if that is given.
    """

    def __init__(
        self,
        at_work: int,
        waiting: int,
        wait_s: float,
        beside: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.RLock()
        self._now = now
        self._turns = Shares(at_work, beside=beside, now=now)
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

    def expect(self, client: str) -> object:
        """Count somebody as waiting who is about to: their upload is still to be received. Raise Overloaded.

        What is returned stands for them in `acquire` and `forget`.
        """
        coming = object()
        with self._lock:
            if self.is_full(client):
                raise Overloaded("line")
            if not self._turns.allows(client):
                self._coming[coming] = client, self._now() + _COMING_S
        return coming

    def forget(self, coming: object) -> None:
        with self._lock:
            self._coming.pop(coming, None)

    def is_full(self, client: str) -> bool:
        with self._lock:
            if self._turns.allows(client):
                return False
            now = self._now()
            self._coming = {who: each for who, each in self._coming.items() if each[1] > now}
            if not self._has_room(client, [who for who, _ in self._coming.values()]):
                return True
            stalled_s = now - self._last_end if self._waiting else 0.0
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
            if self.is_full(client):
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

    def is_pressed_by(self, client: str) -> bool:
        """Whether it has another waiting, and is not alone."""
        return self._waiting.of(client) > 0 and not self._turns.is_alone(client)

    def _uncrowd(self, client: str) -> None:
        if not self._waiting.of(client):
            self._crowded.discard(client)

    def close(self) -> None:
        """Send everybody away who still waits; those whose turn it is go on."""
        with self._lock:
            self._closed = True
            for turn in self._waiting:
                turn.set()


def queues(settings: Settings) -> Mapping[str, AdmissionQueue]:
    """One for each kind of work."""
    at_work, waiting, wait_s = settings.at_work, settings.max_waiting, settings.max_wait_s
    photos = at_work["photos"]
    return {
        "photos": AdmissionQueue(photos, waiting, wait_s, max(1, photos // _OF_PHOTOS_BESIDE)),
        "texts": AdmissionQueue(at_work["texts"], waiting, wait_s),
        "heat maps": AdmissionQueue(
            at_work["heat maps"], settings.max_heat_maps_waiting, settings.explain_deadline_s
        ),
        "pages": AdmissionQueue(at_work["pages"], waiting, wait_s, 1),
    }


class Decoding:
    """How many pictures at a time, of those that may take long, are decoded for one kind of model."""

    def __init__(self, max_sandboxed: int) -> None:
        self._sandboxed = decoders.turns(max_sandboxed)

    def here(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Around what decodes in this process, or asks another to."""
        return decoders.decoding_for(
            deadline.left_s(), deadline.is_cancelled, deadline.client, self._sandboxed
        )

    def there(self, photo: bytes, deadline: Deadline) -> AbstractContextManager[None]:
        """While a photo is answered that a model decodes itself: a place, where that may take long."""
        quick = is_harmless(from_base64(photo))
        return nullcontext() if quick else decoders.place(self._sandboxed, deadline.client)

    @contextmanager
    def guarded(self, photo: bytes, deadline: Deadline) -> Iterator[dict[str, float]]:
        """The same, once its header was looked at, with how long that took; raise PictureError."""
        started = time.perf_counter()
        with self.here(deadline):
            identify(photo)
        with self.there(photo, deadline):
            yield {"decode": (time.perf_counter() - started) * 1000}
