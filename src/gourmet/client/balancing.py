"""Several servers of the same models as one: each request goes to where an answer costs least now.

Of two servers that are drawn the cheaper one is asked, by how long its last answers took and how many it has
yet to give: that finds one that is slow or stands still before any deadline passes. One that fails is left
out, and comes back when it answers again. A request that had nothing of an answer is asked once elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from gourmet.client.deadline import Deadline
from gourmet.client.errors import NoAnswerInTime, NotTriton, TritonError, TritonRefused, TritonUnreachable
from gourmet.client.transport import Call, Reply, Transport

_SPREAD: Final = ("infer", "stream")
# How much a faster answer changes what is known of a server; a slower one is believed at once.
_NEWEST: Final = 0.2
# After so long without an answer a third of it is left: one that was slow is tried again.
_FADES_S: Final = 5.0
# Between two looks at a server that is left out: twice as long after each that fails, and at most so long.
_FIRST_LOOK_S: Final = 0.25
_LAST_LOOK_S: Final = 4.0
_LOOK_TAKES_S: Final = 1.0
# What a server says of a model that it does not have, whatever the status.
_UNKNOWN_MODEL: Final = "unknown model"


class _Replica:
    """One of them, as it is known here; its owner's lock guards it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.took_s, self.since = 0.0, time.monotonic()
        self.under_way: dict[int, float] = {}
        # Of which models it is left out, and how often that failed in a row; "" is all that it has.
        self.left_out: set[str] = set()
        self.failed: dict[str, int] = {}

    def cost(self, now: float) -> float:
        """A server that stands still becomes the dearer the longer its oldest request waits."""
        faded = self.took_s * math.exp((self.since - now) / _FADES_S)
        waits = now - min(self.under_way.values(), default=now)
        return max(faded, waits) * (len(self.under_way) + 1)

    def is_left_out(self, model: str) -> bool:
        return "" in self.left_out or model in self.left_out

    def answered(self, model: str, seconds: float, now: float) -> None:
        faded = self.took_s * math.exp((self.since - now) / _FADES_S)
        self.took_s, self.since = max(seconds, faded + _NEWEST * (seconds - faded)), now
        self.failed.pop("", None)
        self.failed.pop(model, None)


class BalancedTransport:
    """A transport over several servers, which have the same models if not always the same versions."""

    def __init__(
        self, below: Sequence[Transport], draw: Callable[[int, int], Sequence[int]] | None = None
    ) -> None:
        """`draw` chooses so many different numbers below a number."""
        self.protocol: Literal["http", "grpc"] = below[0].protocol
        self.address = ",".join(each.address for each in below)
        self._servers = [_Replica(each) for each in below]
        self._draw = draw or (lambda below, count: random.sample(range(below), count))
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        for each in self._servers:
            each.transport.close()

    def answering(self) -> dict[str, bool]:
        """Each server by its address, and whether it is asked."""
        with self._lock:
            return {each.transport.address: not each.left_out for each in self._servers}

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        is_request = call.operation in _SPREAD
        tries = min(2 if is_request else len(self._servers), len(self._servers))
        tried: list[_Replica] = []
        while True:
            server = self._choose(call, tried)
            tried.append(server)
            has_begun = False
            try:
                for reply in self._asked(server, call, deadline):
                    has_begun = has_begun or reply is not None
                    yield reply
                return
            except TritonError as exc:
                fault = _fault_of(exc, call)
                # A name that anybody may ask about is looked for elsewhere, and not remembered.
                if fault == "" or (fault and is_request):
                    self._leave_out(server, fault)
                if fault is None or has_begun or len(tried) == tries or deadline.passed:
                    raise

    def _choose(self, call: Call, tried: Sequence[_Replica]) -> _Replica:
        model = _model_of(call)
        with self._lock:
            untried = [each for each in self._servers if each not in tried]
            known = [each for each in untried if not each.is_left_out(model)]
            among = known or untried
            if call.operation not in _SPREAD or len(among) == 1:
                return among[0]
            now = time.monotonic()
            return min((among[place] for place in self._draw(len(among), 2)), key=lambda each: each.cost(now))

    def _asked(self, server: _Replica, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        began, number, is_first = time.monotonic(), next(self._numbers), call.operation in _SPREAD
        with self._lock:
            server.under_way[number] = began
        try:
            with contextlib.closing(server.transport.send(call, deadline)) as replies:  # type: ignore[type-var]
                for reply in replies:
                    if is_first and reply is not None:
                        is_first, now = False, time.monotonic()
                        with self._lock:
                            server.answered(_model_of(call), now - began, now)
                            server.under_way[number] = now  # of a stream the first piece is waited for
                    yield reply
        finally:
            with self._lock:
                del server.under_way[number]

    def _leave_out(self, server: _Replica, model: str) -> None:
        with self._lock:
            if model in server.left_out:
                return
            server.left_out.add(model)
        name = f"look at {server.transport.address}"
        threading.Thread(target=self._look, args=(server, model), name=name, daemon=True).start()

    def _look(self, server: _Replica, model: str) -> None:
        """Take the server in again when it answers; one that then fails again is looked at less often."""
        while True:
            with self._lock:
                times = server.failed.get(model, 0)
                server.failed[model] = times + 1
            if self._closed.wait(min(_FIRST_LOOK_S * 2**times, _LAST_LOOK_S)):
                return
            with contextlib.suppress(TritonError):
                call = Call("ready", model) if model else Call("live")
                list(server.transport.send(call, Deadline(_LOOK_TAKES_S)))
                break
        with self._lock:
            server.left_out.discard(model)


def _fault_of(error: TritonError, call: Call) -> str | None:
    """What to leave the server out for: all it has (""), a model, or None where the request is at fault."""
    if isinstance(error, TritonUnreachable | NotTriton | NoAnswerInTime):
        return ""
    if isinstance(error, TritonRefused) and call.target:
        lacks_it = error.status == 404 or _UNKNOWN_MODEL in error.reason.lower()
        if lacks_it or (error.status >= 500 and error.status != 503):
            return _model_of(call)
    return None


def _model_of(call: Call) -> str:
    return call.target.partition("/")[0]
