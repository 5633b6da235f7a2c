"""The client of a request, and the admission queue.

    connection ─ head ─ a thread of gunicorn ─ queue ─ place ─ upload ─ answer
                                               │       └ MAX_AT_WORK have one
                                               └ MAX_WAITING wait, none for longer than MAX_WAIT_S

Routes with the option `admitted` get a place, and then their deadline, before their view is called. Photos,
texts and heat maps have one queue each; gourmet.served.fair_queue shares the places between clients.
A request waits before its body is read, so that a worker holds at most one body per place. gunicorn has more
threads than all places together, so that some are always free for refusals, pages and probes.

A client is an API key or else an address. An IPv6 client is the /64 prefix of a subscriber.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import random
import re
import select
import time
from collections.abc import Callable
from typing import Final

from flask import Flask, current_app, g, request

from app.web.errors import Overloaded, ServingError
from app.web.http import options_of_route
from app.web.metrics import Metrics
from app.web.settings import Settings
from gourmet.served.fair_queue import FairQueue, QueueFull
from gourmet.triton_client.deadline import Deadline

# A client that only closes its sending side looks like one that disconnected.
_HALF_CLOSED_S: Final = 1.0
# A refusal waits this long. A client that asks again at once would otherwise take the CPU from the photos.
_REFUSAL_S: Final = 0.5
# Some proxies add the port, which differs for each connection.
_PORT: Final = re.compile(r"^\[(.+)\](?::\d+)?$|^([\d.]+):\d+$")


@functools.lru_cache(4096)
def client_of(address: str) -> str:
    address = _PORT.sub(r"\1\2", address)
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket, or a proxy's "unknown"
        return address
    if ip.version == 4:
        return address
    return str(ip.ipv4_mapped or f"{int(ip) >> 64:x}/64")


def client_of_request() -> str:
    """Return the digest of a valid key, or else the address; before keys are checked, the address."""
    return g.get("client") or client_of(request.remote_addr or "")


def deadline_of_request() -> Deadline:
    """Return the deadline of the answer to this request, which was admitted."""
    deadline: Deadline = g.deadline
    return deadline


def _client_left(half_closed_s: float = _HALF_CLOSED_S) -> Callable[[], bool]:
    """Return a function that returns True, until this request is answered, if its client disconnected."""
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
        return now >= left_at + half_closed_s

    return left


class Admission:
    """The queues of one process; `g.place` holds a request's place until the request ends."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._in_flight = metrics.in_flight
        self._queues = {
            kind: FairQueue(places, settings.waiting[kind]) for kind, places in settings.at_work.items()
        }
        self._max_wait_s = dict.fromkeys(self._queues, settings.max_wait_s)
        self._max_wait_s["heat maps"] = settings.explain_deadline_s
        self._deadline_s = {
            "photos": settings.request_deadline_s,
            "texts": settings.generate_deadline_s,
            "heat maps": settings.explain_deadline_s,
        }

    def admit(self) -> None:
        """Wait for a place if the route needs one; raise Overloaded if there is none in time."""
        kind, client = options_of_route().admitted, client_of_request()
        if not kind or request.method == "OPTIONS":
            return
        # Requests that came together are not all refused together: their clients would come together again.
        max_wait_s = self._max_wait_s[kind] * random.uniform(0.9, 1.0)  # noqa: S311 - not a secret
        end, has_left = time.monotonic() + max_wait_s, _client_left(half_closed_s=0.0)
        try:
            with self._in_flight[kind].labels("waiting").track_inprogress():
                g.line_ms = self._queues[kind].acquire(client, end, has_left) * 1000
        except QueueFull:
            time.sleep(_REFUSAL_S)
            raise Overloaded("line") from None
        except TimeoutError:
            if has_left():
                raise ServingError("client_left", "the client disconnected while it waited") from None
            raise Overloaded("wait") from None
        self._in_flight[kind].labels("work").inc()
        g.place = kind, client
        # A hash that is the same in all workers, since keys and addresses are not passed on.
        client_hash = hashlib.blake2b(client.encode(), digest_size=8).hexdigest()
        g.deadline = Deadline(self._deadline_s[kind], _client_left(), client_hash)

    def keep_place(self) -> Callable[[], None]:
        """Keep the place after the request, for a streamed answer; return the function that releases it."""
        place: tuple[str, str] | None = g.pop("place", None)

        def end() -> None:
            if place is not None:
                kind, client = place
                self._queues[kind].release(client)
                self._in_flight[kind].labels("work").dec()

        return end

    def release(self) -> None:
        """Release the request's place, if it still has one."""
        self.keep_place()()


def init_app(app: Flask, settings: Settings) -> None:
    queues = app.extensions["admission"] = Admission(settings, app.extensions["metrics"])
    app.before_request(queues.admit)
    app.teardown_request(lambda _: queues.release())


def admission() -> Admission:
    """Return the admission of the app that answers this request."""
    shared: Admission = current_app.extensions["admission"]
    return shared
