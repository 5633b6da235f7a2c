"""Ask a served model about many pictures at a time, keeping every answer with its picture.

One thread reads, one a CPU encodes (Pillow and numpy work outside the interpreter's lock), and one
a request in flight sends and waits, with a client of its own as tritonclient demands. So many
batches as there are threads are in memory and no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import gevent
import numpy as np
import numpy.typing as npt
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gourmet.checking.pictures import BadPictures, Pictures
from gourmet.checking.served import Served, WrongAnswer, ask
from gourmet.evaluating.accuracy import Scores
from gourmet.serving.asking import TritonUnreachable
from gourmet.serving.waiting import http_ok
from gourmet.systems.instances import available_cpus
from gourmet.systems.pictures import PictureError

Watch = Callable[[int, float], None]  # pictures done, those a second


@dataclass(frozen=True)
class Pace:
    """How to ask."""

    in_flight: int = 16
    batch: int = 16
    timeout_s: float = 60.0


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
    outcome: Scores | Failure
    latency_ms: float = 0.0
    version: str = ""
    unreachable: bool = False


class _Clients(threading.local):
    """A client for each thread."""

    def __init__(self, url: str, timeout_s: float, made: list[InferenceServerClient]) -> None:
        self.client = InferenceServerClient(url, connection_timeout=2.0, network_timeout=timeout_s)
        made.append(self.client)


def ask_all(
    served: Served, pictures: Pictures, pace: Pace, watch: Watch, stopping: Callable[[], bool]
) -> Asked:
    """Ask about all pictures, in batches of which the last may be smaller.

    A request that fails is noted and the others go on, unless the server is gone. If `stopping`
    turns true, what is in flight is waited for and nothing more is sent.
    """
    asked = Asked(np.full((len(pictures), len(served.labels)), np.nan, dtype=np.float32))
    cpus, made = available_cpus(), list[InferenceServerClient]()
    clients = _Clients(served.url, pace.timeout_s, made)
    started = time.monotonic()

    def take(replies: set[Future[_Reply]]) -> None:
        for reply in replies:
            _note(asked, reply.result(), pictures, served.url)
        done = int(asked.answered.sum()) + sum(len(failure.names) for failure in asked.failures)
        watch(done, done / max(1e-9, time.monotonic() - started))

    encoders = ThreadPoolExecutor(cpus, thread_name_prefix="encode")
    senders = ThreadPoolExecutor(pace.in_flight, thread_name_prefix="ask")
    pending: set[Future[_Reply]] = set()
    try:
        for rows, names, blobs in _batches(pictures, pace.batch):
            while len(pending) >= pace.in_flight + cpus and not stopping():
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                take(done)
            if stopping():
                asked.stopped = True
                break
            encoded = encoders.submit(_encode, served, names, blobs)
            pending.add(senders.submit(_send, clients, served, rows, names, encoded, pace.timeout_s))
            asked.sent += len(names)
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            take(done)
    finally:
        encoders.shutdown(cancel_futures=True)
        senders.shutdown(cancel_futures=True)
        for client in made:
            client.close()
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


def _encode(served: Served, names: Sequence[str], blobs: list[bytes]) -> npt.NDArray[Any] | Failure:
    rows: list[npt.NDArray[Any]] = []
    for name, data in zip(names, blobs, strict=True):
        try:
            rows.append(served.contract.encode(data, served.datatype))
        except PictureError as exc:
            return Failure(names, f"{name} cannot be read: {exc} [{exc.code}]")
    values: npt.NDArray[Any] = np.concatenate(rows)
    return values


def _send(
    clients: _Clients,
    served: Served,
    rows: slice,
    names: Sequence[str],
    encoded: Future[npt.NDArray[Any] | Failure],
    timeout_s: float,
) -> _Reply:
    values = encoded.result()
    if isinstance(values, Failure):
        return _Reply(rows, values)
    began = time.monotonic()
    try:
        answer = ask(clients.client, served, values)
    except InferenceServerException as exc:
        return _Reply(rows, Failure(names, str(exc.message())))
    except WrongAnswer as exc:
        return _Reply(rows, Failure(names, str(exc)))
    except (gevent.Timeout, TimeoutError):
        return _Reply(rows, Failure(names, f"no answer within {timeout_s:g} s"))
    except Exception as exc:  # a lost connection has many names
        gone = not http_ok(f"http://{served.url}/v2/health/live")
        return _Reply(rows, Failure(names, f"the connection broke: {exc!r}"), unreachable=gone)
    latency_ms = (time.monotonic() - began) * 1000.0
    return _Reply(rows, answer.probabilities, latency_ms, answer.version)


def _note(asked: Asked, reply: _Reply, pictures: Pictures, url: str) -> None:
    if reply.unreachable:
        raise TritonUnreachable(
            f"Triton at {url} went away after {int(asked.answered.sum())} of {len(pictures)} pictures: "
            "start it again and repeat the check"
        )
    if isinstance(reply.outcome, Failure):
        asked.failures.append(reply.outcome)
        return
    asked.probabilities[reply.rows] = reply.outcome
    asked.latencies_ms.append(reply.latency_ms)
    asked.versions.add(reply.version)
