"""Many questions to a server from several threads, in their order and no more at a time than allowed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from gourmet.client.deadline import Deadline
from gourmet.client.triton import Answer, Triton
from gourmet.contracts import ModelInfo, Tensors

Item = TypeVar("Item")
Result = TypeVar("Result")


class TimedServer:
    """The server as questions reach it: at most so many requests at a time, each of them timed."""

    def __init__(self, triton: Triton, in_flight: int, timeout_s: float) -> None:
        self.triton, self.in_flight, self.timeout_s = triton, in_flight, timeout_s
        self._places, self._mine = threading.Semaphore(in_flight), threading.local()

    def infer(self, model: str, inputs: Tensors) -> Answer:
        with self._timed():
            return self.triton.infer(model, inputs, Deadline(self.timeout_s))

    def stream(self, model: ModelInfo, inputs: Tensors) -> Iterator[Tensors]:
        """The pieces of an answer as they arrive."""
        with self._timed():
            yield from filter(None, self.triton.stream(model, inputs, Deadline(self.timeout_s)))

    def taken_ms(self) -> float:
        """How long the requests of this thread took since it last asked for this."""
        taken: float = getattr(self._mine, "taken_ms", 0.0)
        self._mine.taken_ms = 0.0
        return taken

    @contextmanager
    def _timed(self) -> Iterator[None]:
        with self._places:
            began = time.monotonic()
            try:
                yield
            finally:
                self._mine.taken_ms = self.taken_ms() + (time.monotonic() - began) * 1000.0


def in_threads(ask: Callable[[Item], Result], questions: Iterable[Item], threads: int) -> Iterator[Result]:
    """The answers in the order of the questions, which are read as they are needed."""
    pool = ThreadPoolExecutor(threads)
    under_way: deque[Future[Result]] = deque()
    try:
        for question in questions:
            under_way.append(pool.submit(ask, question))
            if len(under_way) == 2 * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
