"""Our own asynchronous client: a closed loop, or an open one whose latencies omit nothing.

In an open loop requests are due at times drawn beforehand, and a latency counts from when its request
was due: a server that stalls cannot hide the requests that it kept from being sent.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gourmet.bench.connections import Reply, RequestFailed
from gourmet.bench.figures import Array
from gourmet.bench.results import Demand
from gourmet.bench.trust import too_many_in_flight
from gourmet.bench.wire import Request, Wire

# More than this under way means that answers do not come as fast as requests.
_MOST_IN_FLIGHT: Final = 4096
_HOPELESSLY_LATE_S: Final = 2.0

Check = Callable[[Request, Reply], None]
Mark = Callable[[], Awaitable[None]]


@dataclass
class Traffic:
    """What was sent when, and answered when; failures apart. Times are seconds of one clock."""

    due: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    began: float = 0.0
    ended: float = 0.0
    client_cores: float = 0.0

    def arrays(self) -> tuple[Array, Array, Array]:
        due, sent, done = (np.array(times) for times in (self.due, self.sent, self.done))
        return due, sent, done


@dataclass(frozen=True)
class Pace:
    """How long to warm up and to measure."""

    warm_up_s: float
    measure_s: float


def run(
    wire: Wire,
    requests: Sequence[Request],
    demand: Demand,
    pace: Pace,
    check: Check,
    *,
    mark: Mark,
    seed: int = 0,
    on_time: Callable[[float], None] = lambda _: None,
) -> Traffic:
    """Put `demand` on the server; every answer is checked, and `mark` awaited at begin and end.

    `check` raises where an answer is wrong, which ends the run. `on_time` is told the share that is done.
    """
    load = _Load(wire, itertools.cycle(requests), check)
    return asyncio.run(load.run(demand, pace, mark, seed, on_time))


class _Load:
    def __init__(self, wire: Wire, requests: Iterator[Request], check: Check) -> None:
        self._wire, self._requests, self._check = wire, requests, check
        self.traffic = Traffic()

    async def run(
        self, demand: Demand, pace: Pace, mark: Mark, seed: int, on_time: Callable[[float], None]
    ) -> Traffic:
        start, length_s = time.perf_counter(), pace.warm_up_s + pace.measure_s
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(start, pace, mark, on_time))
                if demand.arrivals == "closed":
                    for _ in range(int(demand.level)):
                        group.create_task(self._ask_until(start + length_s))
                else:
                    await self._dispatch(group, _due_times(demand, start, length_s, seed), demand)
        except BaseExceptionGroup as exc:
            raise _first(exc) from None
        finally:
            await self._wire.close()
        return self.traffic

    async def _watch(self, start: float, pace: Pace, mark: Mark, on_time: Callable[[float], None]) -> None:
        await asyncio.sleep(pace.warm_up_s)
        await mark()
        self.traffic.began, busy = time.perf_counter(), time.process_time()
        end = self.traffic.began + pace.measure_s
        while (left := end - time.perf_counter()) > 0:
            on_time(1 - (left / (end - start)))
            await asyncio.sleep(min(0.25, left))
        self.traffic.ended = time.perf_counter()
        self.traffic.client_cores = (time.process_time() - busy) / (self.traffic.ended - self.traffic.began)
        await mark()

    async def _ask_until(self, stop: float) -> None:
        while (now := time.perf_counter()) < stop:
            await self._ask(now)

    async def _dispatch(self, group: asyncio.TaskGroup, due: Iterator[float], demand: Demand) -> None:
        waiting: set[asyncio.Task[None]] = set()
        for at in due:
            left = at - time.perf_counter()
            await asyncio.sleep(max(0.0, left))  # even when late, so that others get their turn
            if len(waiting) >= _MOST_IN_FLIGHT or -left > _HOPELESSLY_LATE_S:
                raise too_many_in_flight(demand, len(waiting), -left)
            task = group.create_task(self._ask(at))
            waiting.add(task)
            task.add_done_callback(waiting.discard)

    async def _ask(self, due: float) -> None:
        request = next(self._requests)
        sent = time.perf_counter()
        try:
            reply = await self._wire.send(request)
        except RequestFailed as exc:
            self.traffic.errors[str(exc)] += 1
            return
        done = time.perf_counter()
        self._check(request, reply)
        self.traffic.due.append(due)
        self.traffic.sent.append(sent)
        self.traffic.done.append(done)
        self.traffic.rows += len(request.rows)


def _due_times(demand: Demand, start: float, length_s: float, seed: int) -> Iterator[float]:
    """Reckoned from 0, since the clock's own numbers are too large to add hundredths to them."""
    random = np.random.default_rng(seed)
    at = 0.0
    for number in itertools.count(1):
        if at >= length_s:
            return
        yield start + at
        if demand.arrivals == "poisson":
            at += random.exponential(1 / demand.level)
        else:
            at = number / demand.level


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The reason why a group of tasks ended: the first that is no group."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def expected_deviation(requests_per_window: float, poisson: bool) -> float:
    """By how much windows differ from the way requests fall into them alone, as a share."""
    if requests_per_window <= 0:
        return math.inf
    return 3 / math.sqrt(requests_per_window) if poisson else 2 / requests_per_window
