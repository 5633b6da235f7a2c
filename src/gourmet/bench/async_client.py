"""Load a server with an asynchronous client that checks every answer, in closed or open loops.

In an open loop, requests are due at times drawn beforehand. A latency counts from the time at which its
request was due: a server that stalls cannot hide the requests that it delayed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gourmet.bench import validity
from gourmet.bench.results import LoadSpec
from gourmet.bench.stats import Array
from gourmet.bench.transports import RawReply, Request, RequestFailed, Wire

_SEED: Final = 1
_MAX_WARM_UP_S: Final = 20.0
_POLL_S: Final = 0.05
# A server that has not answered yet is not asked a million times.
_AFTER_FAILURE_S: Final = 0.02


@dataclass
class LoadGenerator:
    """A load on a server and its results. `check` raises for a wrong answer, which ends the run.

    The load lasts `measure_s`, or until another thread calls `stop`, and awaits every answer. Meanwhile
    another thread may replace `load` by one with another rate. A thread calls `mark` when the measurement
    begins and when it ends. Times are seconds of time.perf_counter.
    """

    wire: Wire
    requests: Iterator[Request]
    load: LoadSpec
    check: Callable[[Request, RawReply], None]
    warm_up_s: float = 0.0
    measure_s: float = math.inf
    mark: Callable[[], None] = lambda: None
    # Without these limits a server that stalls is sent requests all the same.
    max_in_flight: float = 4096
    max_late_s: float = 2.0
    # The times at which each answered request was due, sent and answered.
    times: list[tuple[float, float, float]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    # The times at which each failed request was due and failed.
    failures: list[tuple[float, float]] = field(default_factory=list)
    # The times of the pieces of each streamed answer.
    pieces: list[tuple[float, ...]] = field(default_factory=list)
    # Requests, and bytes in both directions, of all answers.
    requests_sent: int = 0
    transferred: int = 0
    began: float = 0.0
    ended: float = math.inf
    client_cores: float = 0.0
    in_flight: int = 0
    is_stopped: bool = False

    def run(self) -> LoadGenerator:
        asyncio.run(self._run())
        return self

    def stop(self) -> None:
        self.is_stopped = True

    @property
    def is_over(self) -> bool:
        return self.ended < math.inf

    def arrays(self) -> tuple[Array, Array, Array]:
        due, sent, done = np.array(self.times).reshape(-1, 3).T
        return due, sent, done

    def holds(self, times: Array) -> npt.NDArray[np.bool_]:
        """Mark the moments that lie in the measurement."""
        held: npt.NDArray[np.bool_] = (times >= self.began) & (times < self.ended)
        return held

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch())
                if self.load.arrivals == "closed":
                    for _ in range(int(self.load.level)):
                        group.create_task(self._ask_in_turn())
                else:
                    await self._dispatch(group)
        except BaseExceptionGroup as exc:
            raise exc.exceptions[0] from None
        finally:
            await self.wire.close()

    async def _watch(self) -> None:
        await asyncio.sleep(self.warm_up_s)
        if self.load.arrivals == "closed" and self.warm_up_s:
            # A queue that still fills is not a steady state.
            await self._until(time.perf_counter() + _MAX_WARM_UP_S, self._every_client_has_an_answer)
        await asyncio.to_thread(self.mark)
        self.began, busy = time.perf_counter(), time.process_time()
        await self._until(self.began + self.measure_s, lambda: self.is_stopped)
        self.ended = time.perf_counter()
        self.client_cores = (time.process_time() - busy) / (self.ended - self.began)
        await asyncio.to_thread(self.mark)

    async def _until(self, deadline: float, is_reached: Callable[[], bool]) -> None:
        while not is_reached() and (left := deadline - time.perf_counter()) > 0:
            await asyncio.sleep(min(left, _POLL_S))

    def _every_client_has_an_answer(self) -> bool:
        return len(self.times) + self.errors.total() >= self.load.level

    async def _ask_in_turn(self) -> None:
        while not self.is_over:
            await self._send_request(time.perf_counter())
            if not self.times:
                await asyncio.sleep(_AFTER_FAILURE_S)

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        for due in due_times(time.perf_counter(), lambda: self.load):
            while not self.is_over and (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(min(left, _POLL_S))
            if due >= self.ended:
                return
            await asyncio.sleep(0)  # even when late, so that others get their turn
            late_s = time.perf_counter() - due
            if self.in_flight >= self.max_in_flight or late_s > self.max_late_s:
                raise validity.too_many_in_flight(self.in_flight, late_s)
            group.create_task(self._send_request(due))

    async def _send_request(self, due: float) -> None:
        request = next(self.requests)
        sent = time.perf_counter()
        self.in_flight += 1
        try:
            reply = await self.wire.send(request)
        except RequestFailed as exc:
            self.errors[str(exc)] += 1
            self.failures.append((due, time.perf_counter()))
            return
        finally:
            self.in_flight -= 1
        done = time.perf_counter()
        self.check(request, reply)
        self.times.append((due, sent, done))
        self.pieces.append(reply.pieces)
        self.requests_sent += reply.requests
        self.transferred += reply.transferred


def due_times(start: float, load: Callable[[], LoadSpec]) -> Iterator[float]:
    """Yield the moments at which requests are due, by the rate that `load` has at each."""
    random, due = np.random.default_rng(_SEED), start
    while True:
        yield due
        due += (random.exponential() if load().arrivals == "poisson" else 1.0) / load().level
