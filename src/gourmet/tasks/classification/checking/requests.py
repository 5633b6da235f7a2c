"""Ask a served model about many pictures at a time, keeping every answer with its picture.

One thread reads; the others encode a batch (Pillow and numpy work outside the interpreter's lock), send it
and wait, each with a client of its own as tritonclient demands. They are one a CPU more than requests may
be in flight, so that encoding goes on meanwhile; so many batches are in memory and no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count

import gevent
import numpy as np
import numpy.typing as npt
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gourmet.contracts import BadAnswer
from gourmet.pictures.decode import PictureError
from gourmet.runtime.instances import available_cpus
from gourmet.serving.client import TritonUnreachable
from gourmet.serving.waiting import http_ok
from gourmet.tasks.checking import RequestOptions
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.checking.pictures import BadPictures, Pictures
from gourmet.tasks.classification.checking.served import Served, ask

Watch = Callable[[int, float], None]  # pictures done, those a second


@dataclass(frozen=True)
class Failure:
    """A request without an answer, and the pictures that it was about."""

    names: Sequence[str]
    reason: str

    def __str__(self) -> str:
        which = self.names[0] if len(self.names) == 1 else f"{self.names[0]} … {self.names[-1]}"
        return f"{which}: {self.reason}"


@dataclass
class Asked:
    """Everything that came back. Rows without an answer are nan."""

    probabilities: Scores
    sent: int = 0  # pictures
    wall_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)  # of answered requests
    failures: list[Failure] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    stopped: bool = False

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which rows have an answer."""
        there: npt.NDArray[np.bool_] = ~np.isnan(self.probabilities[:, 0])
        return there

    @property
    def mean_in_flight(self) -> float:
        """How many requests were at the server at a time; less than asked for, if encoding is slower."""
        return sum(self.latencies_ms) / 1000.0 / self.wall_s if self.wall_s else 0.0


@dataclass(frozen=True)
class _Reply:
    rows: slice
    probabilities: Scores
    latency_ms: float
    version: str


def ask_all(
    served: Served, pictures: Pictures, options: RequestOptions, watch: Watch, stopping: Callable[[], bool]
) -> Asked:
    """Ask about all pictures, in batches of which the last may be smaller.

    A request that fails is noted and the others go on, unless the server is gone. If `stopping`
    turns true, what is in flight is waited for and nothing more is sent.
    """
    asked = Asked(np.full((len(pictures), len(served.labels)), np.nan, dtype=np.float32))
    started = time.monotonic()

    def take(replies: set[Future[_Reply | Failure]]) -> None:
        for reply in replies:
            _note(asked, reply.result())
        done = int(asked.answered.sum()) + sum(len(failure.names) for failure in asked.failures)
        watch(done, done / max(1e-9, time.monotonic() - started))

    sender = _Sender(served, options)
    threads = options.in_flight + available_cpus()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ask")
    pending: set[Future[_Reply | Failure]] = set()
    try:
        for rows, names, blobs in _batches(pictures, options.batch):
            while len(pending) >= threads and not stopping():
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                take(done)
            if stopping():
                asked.stopped = True
                break
            pending.add(pool.submit(sender.send, rows, names, blobs))
            asked.sent += len(names)
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            take(done)
    except TritonUnreachable as exc:
        raise TritonUnreachable(
            f"{exc} after {int(asked.answered.sum())} of {len(pictures)} pictures: "
            "start it again and repeat the check"
        ) from exc
    finally:
        pool.shutdown(cancel_futures=True)
        sender.close()
    asked.wall_s = time.monotonic() - started
    return asked


def _batches(pictures: Pictures, size: int) -> Iterator[tuple[slice, Sequence[str], list[bytes]]]:
    everything = pictures.read(slice(None))
    for first in count(0, size):
        names = pictures.names[first : first + size]
        if not names:
            return
        try:
            blobs = [next(everything) for _ in names]
        except OSError as exc:
            raise BadPictures(f"{pictures.source} cannot be read: {exc}") from exc
        yield slice(first, first + len(names)), names, blobs


class _Sender:
    """What the threads have in common, and the client that each has of its own."""

    def __init__(self, served: Served, options: RequestOptions) -> None:
        self.served = served
        self.timeout_s = options.timeout_s
        self._in_flight = threading.Semaphore(options.in_flight)
        self._mine = threading.local()
        self._clients: list[InferenceServerClient] = []

    def send(self, rows: slice, names: Sequence[str], blobs: list[bytes]) -> _Reply | Failure:
        encoded = []
        for name, data in zip(names, blobs, strict=True):
            try:
                encoded.append(self.served.encode(data))
            except PictureError as exc:
                return Failure(names, f"{name} cannot be read: {exc} [{exc.code}]")
        values = np.concatenate(encoded)
        with self._in_flight:
            began = time.monotonic()
            try:
                probabilities, version = ask(self._client(), self.served, values)
            except InferenceServerException as exc:
                return Failure(names, str(exc.message()))
            except BadAnswer as exc:
                return Failure(names, str(exc))
            except (gevent.Timeout, TimeoutError):
                return Failure(names, f"no answer within {self.timeout_s:g} s")
            except Exception as exc:  # a lost connection has many names
                if not http_ok(f"http://{self.served.url}/v2/health/live"):
                    raise TritonUnreachable(f"Triton at {self.served.url} went away") from exc
                return Failure(names, f"the connection broke: {exc!r}")
            return _Reply(rows, probabilities, (time.monotonic() - began) * 1000.0, version)

    def _client(self) -> InferenceServerClient:
        if not hasattr(self._mine, "client"):
            self._mine.client = InferenceServerClient(
                self.served.url, connection_timeout=2.0, network_timeout=self.timeout_s
            )
            self._clients.append(self._mine.client)
        client: InferenceServerClient = self._mine.client
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _note(asked: Asked, reply: _Reply | Failure) -> None:
    if isinstance(reply, Failure):
        asked.failures.append(reply)
        return
    asked.probabilities[reply.rows] = reply.probabilities
    asked.latencies_ms.append(reply.latency_ms)
    asked.versions.add(reply.version)
