"""A closed loop of threads, each of which asks again as soon as it was answered, and the window of it.

Blocking sockets copy less than asynchronous streams do where a photo of megabytes does not fit the socket at
once.
"""

from __future__ import annotations

import http.client
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import psutil

from gourmet.errors import UsageError
from gourmet.measure.server_probe import cpu_s, memory_mib, spent_s, tree
from gourmet.measure.task import MeasureOptions

_TIMEOUT_S: Final = 60.0
_LONGEST_WARM_UP_S: Final = 20.0

# Asks about input number n, however many there are, and returns how many answers came; raises WrongAnswers,
# or OSError and ValueError where the server failed.
Asker = Callable[[int], int]


@dataclass(frozen=True)
class BenchLoad:
    """What is asked of an arm: which inputs, and how many at a time."""

    arm: str
    inputs: str
    level: int


@dataclass(frozen=True)
class BenchWindow:
    """What an arm did under a load while the window was open."""

    load: BenchLoad
    seconds: float
    latencies_ms: tuple[float, ...]
    foreign_cores: float
    errors: Mapping[str, int] = field(default_factory=dict)
    client_cores: float = 0.0
    cpu_ms: Mapping[str, float] = field(default_factory=dict)  # for an answer, by group of processes
    memory_mib: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    turn: int = 0

    def __post_init__(self) -> None:
        if not self.latencies_ms:
            where = f"{self.load.arm}, {self.load.inputs}, {self.load.level} at a time"
            why = ", ".join(self.errors) or "take a longer --window"
            raise UsageError(f"{where}: no answer in {self.seconds:.1f} s: {why}")

    @property
    def per_s(self) -> float:
        return len(self.latencies_ms) / self.seconds

    @property
    def percentiles_ms(self) -> tuple[float, float, float]:
        return percentiles(self.latencies_ms)


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """p50, p95 and p99."""
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return p50, p95, p99


@dataclass(frozen=True)
class CpuUsed:
    """CPU seconds up to a moment: of each group of processes, of the bench and all it started, of all."""

    groups: Mapping[str, Mapping[int, float]]
    bench: Mapping[int, float]
    machine: float

    @classmethod
    def now(cls, groups: Mapping[str, int] | None = None) -> CpuUsed:
        """`groups` are named by the process at their top."""
        busy = psutil.cpu_times()
        return cls(
            {name: cpu_s(tree(pid)) for name, pid in (groups or {}).items()},
            cpu_s(tree(os.getpid())),
            busy.user + busy.nice + busy.system,
        )

    def foreign_since(self, before: CpuUsed) -> float:
        """CPU seconds of processes that have nothing to do with the bench."""
        return max(0.0, self.machine - before.machine - spent_s(before.bench, self.bench))


def closed_loop(
    load: BenchLoad,
    askers: Sequence[Asker],
    options: MeasureOptions,
    groups: Mapping[str, int] | None = None,
    figures: Mapping[str, float] | None = None,
) -> BenchWindow:
    """The window of as many threads as there are askers; `groups` are the processes to account for."""
    loop = _ClosedLoop()
    with ThreadPoolExecutor(len(askers)) as pool:
        asking = [pool.submit(loop.run, asker) for asker in askers]
        try:
            time.sleep(options.warm_up_s)
            # A queue that still fills up is not a steady state.
            deadline = time.perf_counter() + _LONGEST_WARM_UP_S
            while len(loop.threads) < len(askers) and time.perf_counter() < deadline:
                if any(each.done() for each in asking):
                    break
                time.sleep(0.01)
            before, busy_s = CpuUsed.now(groups), time.process_time()
            began = time.perf_counter()
            time.sleep(options.measure_s)
            ended = time.perf_counter()
            client_s = time.process_time() - busy_s
            after = CpuUsed.now(groups)
            memory = {name: memory_mib(tree(pid)) for name, pid in (groups or {}).items()}
        finally:
            loop.stop.set()
        for each in asking:
            each.result()
    latencies_ms = [1000 * (done - sent) for sent, done in loop.answered if began <= done <= ended]
    errors = Counter(why for at, why in loop.failed if began <= at <= ended)
    return BenchWindow(
        load,
        ended - began,
        tuple(latencies_ms),
        after.foreign_since(before) / (ended - began),
        errors,
        client_s / (ended - began),
        {
            name: 1000 * spent_s(before.groups[name], busy) / max(1, len(latencies_ms))
            for name, busy in after.groups.items()
        },
        memory,
        figures or {},
    )


def http_loop(
    load: BenchLoad,
    clients: Callable[[], HttpClient],
    ask: Callable[[HttpClient, int], int],
    options: MeasureOptions,
    groups: Mapping[str, int] | None = None,
    figures: Mapping[str, float] | None = None,
) -> BenchWindow:
    """The same with a connection for each thread."""
    with ExitStack() as stack:
        askers = [partial(ask, stack.enter_context(closing(clients()))) for _ in range(load.level)]
        return closed_loop(load, askers, options, groups, figures)


class _ClosedLoop:
    def __init__(self) -> None:
        self.stop = threading.Event()
        self.answered: list[tuple[float, float]] = []  # when sent, when done
        self.failed: list[tuple[float, str]] = []
        self.threads: set[int] = set()  # that have been answered, or failed
        self._numbers = itertools.count()

    def run(self, ask: Asker) -> None:
        while not self.stop.is_set():
            sent = time.perf_counter()
            try:
                count = ask(next(self._numbers))
            except (OSError, ValueError) as exc:
                self.failed.append((time.perf_counter(), f"{type(exc).__name__}: {exc}"))
                time.sleep(0.02)  # a server that is gone is not to be asked a million times
            else:
                self.answered.extend([(sent, time.perf_counter())] * count)
            self.threads.add(threading.get_ident())


class HttpClient:
    """A connection to a server on this machine, which is opened again where the server closed it."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        self._headers = {"Accept": "application/json", **headers}
        self.close = self._connection.close

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of an answer with status 200; raise OSError or ValueError where there is none."""
        with self._answered(method, path, body) as answer:
            return answer.read()

    def lines(self, method: str, path: str, body: bytes = b"") -> Iterator[bytes]:
        """The same, each line as it comes."""
        with self._answered(method, path, body) as answer:
            yield from answer

    @contextmanager
    def _answered(self, method: str, path: str, body: bytes) -> Iterator[http.client.HTTPResponse]:
        try:
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"HTTP {answer.status}: {answer.read()[:200].decode(errors='replace')}")
            yield answer
        except http.client.HTTPException as exc:
            self.close()
            raise ValueError(repr(exc)) from exc
        except BaseException:
            self.close()
            raise


_BOUNDARY: Final = "----gourmet-bench"
FORM_HEADERS: Final = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}


def photo_form(photo: bytes) -> bytes:
    """The form by which browsers send a photo."""
    head = 'Content-Disposition: form-data; name="file"; filename="photo.jpg"\r\nContent-Type: image/jpeg'
    return f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode() + photo + f"\r\n--{_BOUNDARY}--\r\n".encode()
