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
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, Literal

from gourmet.client.deadline import Deadline
from gourmet.client.errors import (
    UNKNOWN_MODEL,
    NoAnswerInTime,
    NotTriton,
    TritonError,
    TritonRefused,
    TritonUnreachable,
)
from gourmet.client.lookup import EVERY_S
from gourmet.client.transport import Call, Reply, Transport
from gourmet.errors import GourmetError

_SPREAD: Final = ("infer", "stream")
# What requests wait for, now and then.
_DESCRIBE: Final = ("metadata", "config")
# How much a faster answer changes what is known of a server; a slower one is believed at once.
_NEWEST: Final = 0.2
# After so long without an answer a third of it is left: one that was slow is tried again.
_FADES_S: Final = 5.0
# Between two looks at a server that is left out: twice as long after each that fails, and at most so long.
_FIRST_LOOK_S: Final = 0.25
_LAST_LOOK_S: Final = 4.0
_LOOK_TAKES_S: Final = 1.0


class _Pace:
    """How long one server takes for one model, which for a sentence is another time than for a photo."""

    def __init__(self) -> None:
        self._took_s, self._since = 0.0, time.monotonic()
        # When each request began that has nothing of its answer yet, which of a stream is its first piece.
        self.waiting: dict[int, float] = {}

    def seconds(self, now: float) -> float:
        """What an answer may take: one that is waited for longer than others took says more than they do."""
        return max(self._faded(now), now - min(self.waiting.values(), default=now))

    def answered(self, seconds: float, now: float) -> None:
        faded = self._faded(now)
        self._took_s, self._since = max(seconds, faded + _NEWEST * (seconds - faded)), now

    def _faded(self, now: float) -> float:
        return self._took_s * math.exp((self._since - now) / _FADES_S)


class _Replica:
    """One of the servers, as it is known here; its owner's lock guards it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.paces: defaultdict[str, _Pace] = defaultdict(_Pace)
        self.under_way = 0
        # Of which models it is left out, and how often that failed in a row; "" is all that it has.
        self.left_out: set[str] = set()
        self.failed: dict[str, int] = {}

    def cost(self, model: str, now: float) -> float:
        # Anybody may ask about a name: one that was never asked for an answer leaves nothing here.
        pace = self.paces.get(model)
        return pace.seconds(now) * (self.under_way + 1) if pace else 0.0

    def is_left_out(self, model: str) -> bool:
        return "" in self.left_out or model in self.left_out

    def answered(self, model: str, seconds: float, now: float) -> None:
        self.paces[model].answered(seconds, now)
        self.failed.pop("", None)
        self.failed.pop(model, None)


class BalancedTransport:
    """A transport over several servers, which have the same models if not always the same versions."""

    def __init__(self, below: Sequence[Transport]) -> None:
        self.protocol: Literal["http", "grpc"] = below[0].protocol
        self.address = ",".join(each.address for each in below)
        # Replaced whole, so that who is at work with it sees one list.
        self._replicas = [_Replica(each) for each in below]
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        for each in self._replicas:
            each.transport.close()

    def answering(self) -> dict[str, bool]:
        """Each server by its address, and whether it is asked."""
        with self._lock:
            return {each.transport.address: not each.left_out for each in self._replicas}

    def follow(self, now: Callable[[], Sequence[Transport]]) -> None:
        """Be over those that `now` says, at once and every few seconds; one that stays is known as before.

        What one that goes has under way is answered still, and with the last of it go its connections.
        """

        def go_on() -> None:
            while not self._closed.is_set():
                with contextlib.suppress(GourmetError):  # such as certificates that are being replaced
                    found = now()
                    known = {each.transport: each for each in self._replicas}
                    self._replicas = [known.get(each) or _Replica(each) for each in found]
                self._closed.wait(EVERY_S)

        threading.Thread(target=go_on, name=f"look up {self.address}", daemon=True).start()

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        replicas = self._replicas
        if len(replicas) == 1:
            yield from replicas[0].transport.send(call, deadline)
            return
        is_request = call.operation in _SPREAD
        tries = min(2 if is_request else len(replicas), len(replicas))
        tried: list[_Replica] = []
        while True:
            replica = self._choose(call, replicas, tried)
            tried.append(replica)
            has_begun = False
            try:
                with contextlib.closing(self._asked(replica, call, deadline)) as replies:
                    for reply in replies:
                        has_begun = has_begun or reply is not None
                        yield reply
                return
            except TritonError as exc:
                fault = _fault_of(exc, call)
                # A name that anybody may ask about is looked for elsewhere, and not remembered.
                if fault == "" or (fault and is_request):
                    self._leave_out(replica, fault)
                if fault is None or has_begun or len(tried) == tries or deadline.passed:
                    raise

    def _choose(self, call: Call, replicas: Sequence[_Replica], tried: Sequence[_Replica]) -> _Replica:
        model = _model_of(call)
        with self._lock:
            untried = [each for each in replicas if each not in tried]
            known = [each for each in untried if not each.is_left_out(model)]
            among = known or untried
            if call.operation not in (*_SPREAD, *_DESCRIBE) or len(among) == 1:
                return among[0]
            now = time.monotonic()
            drawn = random.sample(among, 2) if call.operation in _SPREAD else among
            return min(drawn, key=lambda each: each.cost(model, now))

    def _asked(
        self, replica: _Replica, call: Call, deadline: Deadline
    ) -> Generator[Reply | None, None, None]:
        if call.operation not in _SPREAD:
            yield from replica.transport.send(call, deadline)
            return
        model, number, began = _model_of(call), next(self._numbers), time.monotonic()
        with self._lock:
            replica.under_way += 1
            waiting = replica.paces[model].waiting
            waiting[number] = began
        try:
            with contextlib.closing(replica.transport.send(call, deadline)) as replies:  # type: ignore[type-var]
                for reply in replies:
                    if reply is not None and number in waiting:
                        now = time.monotonic()
                        with self._lock:
                            del waiting[number]
                            replica.answered(model, now - began, now)
                    yield reply
        finally:
            with self._lock:
                waiting.pop(number, None)
                replica.under_way -= 1

    def _leave_out(self, replica: _Replica, model: str) -> None:
        with self._lock:
            if model in replica.left_out:
                return
            replica.left_out.add(model)
        name = f"look at {replica.transport.address}"
        threading.Thread(target=self._look, args=(replica, model), name=name, daemon=True).start()

    def _look(self, replica: _Replica, model: str) -> None:
        """Take the server in again when it answers; one that then fails again is looked at less often."""
        while True:
            with self._lock:
                times = replica.failed.get(model, 0)
                replica.failed[model] = times + 1
            wait_s = min(_FIRST_LOOK_S * 2 ** min(times, 8), _LAST_LOOK_S)
            if self._closed.wait(wait_s) or replica not in self._replicas:
                return
            with contextlib.suppress(TritonError):
                call = Call("ready", model) if model else Call("live")
                list(replica.transport.send(call, Deadline(_LOOK_TAKES_S)))
                break
        with self._lock:
            replica.left_out.discard(model)


def _fault_of(error: TritonError, call: Call) -> str | None:
    """What to leave the server out for: all it has (""), a model, or None where the request is at fault."""
    if isinstance(error, TritonUnreachable | NotTriton | NoAnswerInTime):
        return ""
    if isinstance(error, TritonRefused) and call.target:
        lacks_it = error.status == 404 or UNKNOWN_MODEL in error.reason.lower()
        if lacks_it or (error.status >= 500 and error.status != 503):
            return _model_of(call)
    return None


def _model_of(call: Call) -> str:
    return call.target.partition("/")[0]
