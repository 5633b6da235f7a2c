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
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gourmet.measure.connections import RawReply, RequestFailed
from gourmet.measure.results import LoadSpec
from gourmet.measure.stats import Array
from gourmet.measure.transports import Request, Wire
from gourmet.measure.validity import too_many_in_flight

# More than this under way means that answers do not come as fast as requests.
_MOST_IN_FLIGHT: Final = 4096
_HOPELESSLY_LATE_S: Final = 2.0

Check = Callable[[Request, RawReply], None]
Mark = Callable[[], Awaitable[None]]
OnTime = Callable[[float], None]


@dataclass
class Traffic:
    """What was sent when, and answered when; failures apart. Times are seconds of one clock."""

    # When each request was due, sent and answered.
    times: list[tuple[float, float, float]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    # When the pieces of each streamed answer came.
    pieces: list[tuple[float, ...]] = field(default_factory=list)
    rows: int = 0
    began: float = 0.0
    ended: float = 0.0
    client_cores: float = 0.0

    def arrays(self) -> tuple[Array, Array, Array]:
        due, sent, done = np.array(self.times).reshape(-1, 3).T
        return due, sent, done

    def holds(self, times: Array) -> npt.NDArray[np.bool_]:
        """Which of these moments lie in the measurement."""
        held: npt.NDArray[np.bool_] = (times >= self.began) & (times < self.ended)
        return held


@dataclass
class Load:
    """A demand on a server; every answer is checked, and `mark` awaited at begin and end.

    `check` raises where an answer is wrong, which ends the run. `on_time` is told the share that is done.
    """

    wire: Wire
    requests: Iterator[Request]
    demand: LoadSpec
    check: Check
    warm_up_s: float
    measure_s: float
    mark: Mark
    seed: int = 0
    on_time: OnTime = lambda _: None
    traffic: Traffic = field(default_factory=Traffic)

    def run(self) -> Traffic:
        asyncio.run(self._run())
        return self.traffic

    async def _run(self) -> None:
        start, length_s = time.perf_counter(), self.warm_up_s + self.measure_s
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(length_s))
                if self.demand.arrivals == "closed":
                    for _ in range(int(self.demand.level)):
                        group.create_task(self._ask_until(start + length_s))
                else:
                    await self._dispatch(group, _due_times(self.demand, start, length_s, self.seed))
        except BaseExceptionGroup as exc:
            raise _first(exc) from None
        finally:
            await self.wire.close()

    async def _watch(self, length_s: float) -> None:
        await asyncio.sleep(self.warm_up_s)
        await self.mark()
        seen = self.traffic
        seen.began, busy = time.perf_counter(), time.process_time()
        end = seen.began + self.measure_s
        while (left := end - time.perf_counter()) > 0:
            self.on_time(1 - left / length_s)
            await asyncio.sleep(min(0.25, left))
        seen.ended = time.perf_counter()
        seen.client_cores = (time.process_time() - busy) / (seen.ended - seen.began)
        await self.mark()

    async def _ask_until(self, stop: float) -> None:
        while (now := time.perf_counter()) < stop:
            await self._ask(now)

    async def _dispatch(self, group: asyncio.TaskGroup, due: Iterator[float]) -> None:
        waiting: set[asyncio.Task[None]] = set()
        for at in due:
            left = at - time.perf_counter()
            await asyncio.sleep(max(0.0, left))  # even when late, so that others get their turn
            if len(waiting) >= _MOST_IN_FLIGHT or -left > _HOPELESSLY_LATE_S:
                raise too_many_in_flight(self.demand, len(waiting), -left)
            task = group.create_task(self._ask(at))
            waiting.add(task)
            task.add_done_callback(waiting.discard)

    async def _ask(self, due: float) -> None:
        request = next(self.requests)
        sent = time.perf_counter()
        try:
            reply = await self.wire.send(request)
        except RequestFailed as exc:
            self.traffic.errors[str(exc)] += 1
            return
        done = time.perf_counter()
        self.check(request, reply)
        self.traffic.times.append((due, sent, done))
        self.traffic.pieces.append(reply.pieces)
        self.traffic.rows += len(request.rows)


def _due_times(demand: LoadSpec, start: float, length_s: float, seed: int) -> Iterator[float]:
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
    """The reason why a group of tasks ended: the first that is not a group itself."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def expected_deviation(requests_per_window: float, poisson: bool) -> float:
    """By how much windows differ from the way requests fall into them alone, as a share."""
    if requests_per_window <= 0:
        return math.inf
    return 3 / math.sqrt(requests_per_window) if poisson else 2 / requests_per_window
