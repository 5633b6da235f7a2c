"""How places are shared among clients, and who is next: for the web's queues, threads, decoders and rooms.

Nobody has more than three times as many places as are left free: three quarters of them for one client alone
and less the more there are, so that there is always some room for the next. Those who wait have a line each,
and who was served the least so far is next.

What is at work cannot be interrupted: the next request of another client waits for it, or shares the
processors with it. So where that takes long there are fewer places for a client that is not alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

_TIMES_THE_FREE: Final = 3
# For so long after another client was served, one is not alone.
_NOT_ALONE_S: Final = 5.0
# How often the one that waits looks whether it still should.
LOOK_S: Final = 0.1
# The parameter of a request to Triton in which our app names the client that it asks for.
CLIENT_PARAMETER: Final = "client"
T = TypeVar("T")


def is_fair(held: int, free: int, more: int = 1, times: int = _TIMES_THE_FREE) -> bool:
    """Whether who has `held` may have `more` of those that are free, with at most `times` what is left.

    The last one is for those who have none.
    """
    return held + more <= times * (free - more + 1) and (free > more or not held)


def client_of_request(parameters: str) -> str:
    """From what Triton's Python backend has for a request's parameters; empty where none is named."""
    return str(json.loads(parameters or "{}").get(CLIENT_PARAMETER, ""))


class Recent:
    """Who was served last, and who before that: whether a client is alone."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = self._other = ("", -math.inf)

    def add(self, client: str) -> None:
        if client != self._last[0]:
            self._other = self._last
        self._last = client, self._now()

    def is_alone(self, client: str) -> bool:
        _, when = self._other if client == self._last[0] else self._last
        return self._now() >= when + _NOT_ALONE_S


class Shares:
    """So many places, and who has how many of them."""

    def __init__(
        self,
        places: int,
        times: int = _TIMES_THE_FREE,
        beside: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most so many `beside` others for each client, which may have more while it is alone."""
        self.free = places
        self._times = times
        self._beside = places if beside is None else beside
        self._recent = Recent(now)
        self._held: dict[str, int] = {}

    def allows(self, client: str, more: int = 1) -> bool:
        held = self._held.get(client, 0)
        is_many = held + more > self._beside and not self.is_alone(client)
        return not is_many and is_fair(held, self.free, more, self._times)

    def is_alone(self, client: str) -> bool:
        return len(self._held) <= (client in self._held) and self._recent.is_alone(client)

    def take(self, client: str, more: int = 1) -> None:
        self.free -= more
        self._recent.add(client)
        self._held[client] = self._held.get(client, 0) + more

    def give_back(self, client: str, count: int = 1) -> None:
        self.free += count
        self._recent.add(client)
        left = self._held.pop(client, 0) - count
        if left:
            self._held[client] = left


class Lines(Generic[T]):
    """A line for each client; next is the first of the client that was served the least while it stood here.

    Serving an item counts as much as it is said to cost, and a new client has no advantage over the others.
    """

    def __init__(self) -> None:
        self._of: dict[str, deque[tuple[float, T]]] = {}
        self._served: dict[str, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def clients(self) -> Collection[str]:
        return self._of.keys()

    def of(self, client: str) -> int:
        return len(self._of.get(client, ()))

    def before(self, client: str) -> int:
        """How many are served before the next who comes from `client`, where all cost the same."""
        mine = self.of(client)
        others = (len(line) for name, line in self._of.items() if name != client)
        return mine + sum(min(other, mine + 1) for other in others)

    def add(self, client: str, item: T, cost: float = 1.0) -> None:
        if client not in self._of:
            self._of[client] = deque()
            self._served[client] = min(self._served.values(), default=0.0)
        self._of[client].append((cost, item))
        self._count += 1

    def first(self, client: str) -> T:
        """Of a client that has a line."""
        return self._of[client][0][1]

    def next(self, allows: Callable[[str], bool] = lambda _: True) -> tuple[str, T] | None:
        """Take out the next whose client is allowed another."""
        allowed = [client for client in self._of if allows(client)]
        if not allowed:
            return None
        client = min(allowed, key=self._served.__getitem__)
        cost, item = self._of[client].popleft()
        self._count -= 1
        line, served = self._of.pop(client), self._served.pop(client)
        if line:  # of those who were served as much, this one is last from now on
            self._of[client], self._served[client] = line, served + cost
        return client, item

    def remove(self, client: str, item: T) -> bool:
        """Whether it was there."""
        line = self._of.get(client, deque[tuple[float, T]]())
        place = next((place for place, (_, each) in enumerate(line) if each is item), None)
        if place is None:
            return False
        del line[place]
        self._count -= 1
        if not line:
            del self._of[client], self._served[client]
        return True

    def __iter__(self) -> Iterator[T]:
        return (item for line in self._of.values() for _, item in line)


class Turns:
    """At most so many at work at a time; the others wait, a line for each client.

    Work without a client's name is this machine's own, and may have all places.
    """

    def __init__(self, places: int, times: int = _TIMES_THE_FREE) -> None:
        self._shares = Shares(places, times)
        self._waiting = Lines[object]()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def turn(self, client: str, gave_up: Callable[[], bool]) -> Iterator[None]:
        """Around the work; raises TimeoutError where `gave_up` before its turn came."""
        me = object()
        with self._changed:
            self._waiting.add(client, me)
            self._begin_next()
            while me in self._waiting:
                self._changed.wait(LOOK_S)
                if me in self._waiting and gave_up():
                    self._waiting.remove(client, me)
                    raise TimeoutError
        try:
            yield
        finally:
            with self._changed:
                self._shares.give_back(client)
                self._begin_next()

    def _begin_next(self) -> None:
        while found := self._waiting.next(self._allows):
            self._shares.take(found[0])
            self._changed.notify_all()

    def _allows(self, client: str) -> bool:
        return self._shares.allows(client) if client else self._shares.free > 0


class ThreadsInTurn:
    """So many threads for each client at most, and one more: what waits for them has a line for each."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads + 1, thread_name_prefix=name)
        self._shares = Shares(threads + 1)
        self._waiting = Lines[tuple[Future[Any], Callable[[], Any]]]()
        self._lock = threading.Lock()

    def submit(self, client: str, work: Callable[[], T]) -> Future[T]:
        future = Future[T]()
        with self._lock:
            self._waiting.add(client, (future, work))
            self._begin_next()
        return future

    def _begin_next(self) -> None:
        while found := self._waiting.next(self._shares.allows):
            client, (future, work) = found
            self._shares.take(client)
            self._pool.submit(self._do, client, future, work)

    def _do(self, client: str, future: Future[Any], work: Callable[[], Any]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(work())
        except BaseException as exc:
            future.set_exception(exc)
        finally:
            with self._lock:
                self._shares.give_back(client)
                self._begin_next()
