"""Check served models: ask many questions at a time, compare the answers, report.

A task brings the questions, how one of them is asked, and what the answers are worth: `ServedCheck`. Its
module `gourmet.tasks.<task>.check` has a function `prepare` that makes one of the options of `gourmet check`,
and `ANSWER`, the dataclass as which the answers of a check that was stopped are read again. Threads,
deadlines, progress, Ctrl-C, a server that goes away and Triton's statistics are the frame's.
"""

from __future__ import annotations

import copy
import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from gourmet.client.deadline import Deadline
from gourmet.client.errors import TritonUnreachable
from gourmet.client.statistics import ModelStatistics
from gourmet.client.triton import Answer, Triton
from gourmet.contracts import ModelInfo, Tensors
from gourmet.errors import GourmetError
from gourmet.result_store import ResultStore
from gourmet.runtime.instances import available_cpus
from gourmet.tasks.system_parts import Stage, SystemParts
from gourmet.training.task import Tick

Item = TypeVar("Item")
Result = TypeVar("Result")


class TimedServer:
    """A server that limits the requests in flight, and measures the time of each question's requests."""

    def __init__(self, triton: Triton, in_flight: int, timeout_s: float) -> None:
        self.triton, self.in_flight, self.timeout_s = triton, in_flight, timeout_s
        self.taken_ms = 0.0
        self._places = threading.Semaphore(in_flight)

    def infer(self, model: str, inputs: Tensors) -> Answer:
        with self._timed():
            return self.triton.infer(model, inputs, Deadline(self.timeout_s))

    def stream(self, model: ModelInfo, inputs: Tensors) -> Iterator[Tensors]:
        """The pieces of an answer as they arrive."""
        with self._timed():
            yield from filter(None, self.triton.stream(model, inputs, Deadline(self.timeout_s)))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        with self._places:
            began = time.monotonic()
            try:
                yield
            finally:
                self.taken_ms += (time.monotonic() - began) * 1000.0


def in_threads(ask: Callable[[Item], Result], questions: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the answers in the order of the questions, and read the questions as they are needed."""
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


@dataclass(frozen=True)
class CheckOptions:
    """The options of a check; a task ignores those that do not apply to it."""

    model: str
    data: Path | None
    repository: Path  # where the served model's manifest lies
    url: str = "localhost:8000"
    part: str | None = None
    limit: int | None = None
    missing_classes: bool = False
    in_flight: int = 16
    batch: int = 16
    timeout_s: float = 60.0
    weights: Path | None = None  # of the eager network
    runs: Path = Path("runs")  # where the weights that the manifest names may lie
    min_top1: float | None = None
    against: str | None = None  # another served model or version, asked the same
    resume: Path | None = None  # the folder that holds the answers of a check that was stopped

    def plan(self) -> dict[str, Any]:
        """Return the options that identify this check: a run with other options cannot go on with its
        answers.
        """
        names = ("model", "data", "part", "limit", "missing_classes", "batch", "weights", "against")
        return {name: getattr(self, name) for name in names}


class CheckQuestion(Protocol):
    """One request; its examples have names, by which a failure is reported."""

    @property
    def names(self) -> Sequence[str]: ...


AnyQuestion = TypeVar("AnyQuestion", bound=CheckQuestion)
AnyAnswer = TypeVar("AnyAnswer")


@dataclass(frozen=True)
class FailedRequest:
    """A request without an answer, and the examples that it was about."""

    names: Sequence[str]
    reason: str

    def __str__(self) -> str:
        which = self.names[0] if len(self.names) == 1 else f"{self.names[0]} … {self.names[-1]}"
        return f"{which}: {self.reason}"


@dataclass
class Replies(Generic[AnyAnswer]):
    """The answers and failures of a check, with their times."""

    answers: list[AnyAnswer] = field(default_factory=list)  # in the order of the questions
    failures: list[FailedRequest] = field(default_factory=list)
    sent: int = 0  # examples
    resumed: int = 0  # examples that an earlier run had asked about
    wall_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)  # of requests answered in this run
    stopped: bool = False  # by Ctrl-C
    counted: ModelStatistics = field(default_factory=ModelStatistics)  # by Triton, meanwhile

    @property
    def mean_in_flight(self) -> float:
        """Return how many requests the server had at a time on average; fewer than allowed if encoding is
        slower.
        """
        return sum(self.latencies_ms) / 1000.0 / self.wall_s if self.wall_s else 0.0

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Let Ctrl-C end the block, and keep the replies so far."""
        try:
            yield
        except KeyboardInterrupt:
            self.stopped = True


class CheckReport(Protocol):
    """The result of a check, for a terminal, a script and a browser."""

    @property
    def stopped(self) -> bool: ...

    def progress(self) -> str:
        """Describe how many examples a stopped check has answers to."""

    def faults(self) -> list[str]:
        """Return the reasons why the check fails; empty if it passes."""

    def summary(self) -> str: ...

    def as_dict(self) -> dict[str, Any]: ...

    def page(self) -> str: ...


class ServedCheck(Protocol[AnyQuestion, AnyAnswer]):
    """A served model, the questions to it, and the score of its answers."""

    def __len__(self) -> int:
        """Return the number of examples in all questions."""

    def questions(self) -> Iterator[AnyQuestion]:
        """Yield the questions; one thread reads them as they are needed."""

    def ask(self, question: AnyQuestion, server: TimedServer) -> AnyAnswer:
        """Ask one question; called by several threads. A GourmetError fails this question alone."""

    def score(self, replies: Replies[AnyAnswer], stage: Stage) -> CheckReport: ...


def check(
    triton: Triton, options: CheckOptions, model: ModelInfo, parts: SystemParts, stage: Stage
) -> CheckReport:
    """Check a served model as the task of its system does."""
    task = importlib.import_module(f"gourmet.tasks.{parts.contract.task}.check")
    server = TimedServer(triton, options.in_flight, options.timeout_s)
    prepared = task.prepare(server, options, model, parts)
    store = ResultStore(options.resume, {**options.plan(), "version": model.version}, task.ANSWER)
    return run_check(prepared, model.name, server, stage, store)


def run_check(
    check: ServedCheck[AnyQuestion, AnyAnswer],
    model: str,
    server: TimedServer,
    stage: Stage,
    store: ResultStore[AnyAnswer] | None = None,
) -> CheckReport:
    """Ask all questions and score the answers. Ctrl-C ends the check early and keeps the answers so far."""
    replies = Replies[AnyAnswer]()
    before = server.triton.total(model)
    with replies.until_stopped(), stage("asking") as tick:
        ask_all(check.ask, check.questions(), len(check), server, replies, tick, store)
    answered = len(replies.latencies_ms)
    replies.counted = server.triton.counted(model, before, lambda counted: counted.requests >= answered)
    return check.score(replies, stage)


def ask_all(
    ask: Callable[[AnyQuestion, TimedServer], AnyAnswer],
    questions: Iterable[AnyQuestion],
    total: int,
    server: TimedServer,
    replies: Replies[AnyAnswer],
    tick: Tick,
    store: ResultStore[AnyAnswer] | None = None,
) -> None:
    """Fill `replies` with answers about `total` examples, from `store` or else from the server.

    A request that fails is noted and the others go on, unless the server is gone.
    """

    def reply_to(entry: tuple[int, AnyQuestion]) -> tuple[int, AnyQuestion, AnyAnswer | FailedRequest, float]:
        number, question = entry
        mine = copy.copy(server)
        try:
            kept = store.get(number) if store else None
            return number, question, kept or ask(question, mine), mine.taken_ms
        except GourmetError as exc:
            if isinstance(exc, TritonUnreachable) and not server.triton.is_live():
                raise
            return number, question, FailedRequest(question.names, str(exc)), mine.taken_ms

    began = time.monotonic()
    # More threads than requests in flight, so that encoding goes on meanwhile.
    threads = server.in_flight + available_cpus()
    try:
        for number, question, answer, taken_ms in in_threads(reply_to, enumerate(questions), threads):
            replies.sent += len(question.names)
            if isinstance(answer, FailedRequest):
                replies.failures.append(answer)
            else:
                replies.answers.append(answer)
                if not taken_ms:
                    replies.resumed += len(question.names)
                else:
                    replies.latencies_ms.append(taken_ms)
                    if store is not None:
                        store.put(answer, number)
            rate = replies.sent / max(1e-9, time.monotonic() - began)
            tick(replies.sent / total, f"{replies.sent}/{total} · {rate:.0f}/s")
    except TritonUnreachable as exc:
        raise GourmetError(
            f"Triton at {exc.address} went away after {replies.sent} of {total} examples: start it again and "
            "repeat the check"
        ) from exc
    finally:
        replies.wall_s = time.monotonic() - began


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Return percentiles of latencies, or nothing if there are none."""
    if not times_ms:
        return {}
    times = {f"p{q}": round(float(np.percentile(times_ms, q)), 2) for q in (50, 90, 95, 99)}
    return {**times, "max": round(max(times_ms), 2)}


def as_words(times_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in times_ms.items()) + " ms"


def first_of(reasons: Sequence[object], count: int = 5) -> str:
    """Join the first of several reasons."""
    return "; ".join([*map(str, reasons[:count]), *(("…",) if len(reasons) > count else ())])
