"""Check served models: ask many questions at a time, and report failures, times and scores.

`picture_check` and `text_check` have the questions and the report of their task.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from gourmet.contracts import ModelInfo
from gourmet.errors import GourmetError
from gourmet.evaluation.system_parts import SystemParts
from gourmet.progress import ProgressBar, ReportProgress
from gourmet.reports.report import Report
from gourmet.triton_client.errors import TritonUnreachable
from gourmet.triton_client.triton import Triton

Item = TypeVar("Item")
Result = TypeVar("Result")

REQUEST_TIMEOUT_S: Final = 60.0
_CHECKS: Final = {
    "classification": "gourmet.evaluation.picture_check",
    "generation": "gourmet.evaluation.text_check",
}
_IN_FLIGHT: Final = 16
_SHOWN: Final = 5


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
    url: str = "localhost:8000"
    limit: int | None = None
    min_top1: float | None = None
    against: str | None = None  # another served model or version, asked the same


class CheckQuestion(Protocol):
    """One request; its examples have names, by which a failure is reported."""

    @property
    def names(self) -> Sequence[str]: ...


class TimedAnswer(Protocol):
    @property
    def total_ms(self) -> float: ...


AnyQuestion = TypeVar("AnyQuestion", bound=CheckQuestion)
AnyAnswer = TypeVar("AnyAnswer", bound=TimedAnswer)


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
    """The answers and failures of a check."""

    answers: list[AnyAnswer] = field(default_factory=list)  # in the order of the questions
    failures: list[FailedRequest] = field(default_factory=list)
    sent: int = 0  # examples
    wall_s: float = 0.0
    stopped: bool = False  # by Ctrl-C

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Let Ctrl-C end the block, and keep the replies so far."""
        try:
            yield
        except KeyboardInterrupt:
            self.stopped = True

    @property
    def times_ms(self) -> list[float]:
        return [answer.total_ms for answer in self.answers]


def check_model(
    triton: Triton, options: CheckOptions, model: ModelInfo, parts: SystemParts, progress_bar: ProgressBar
) -> Report:
    """Check a served model as the task of its system does. Ctrl-C ends it early and keeps the answers."""
    task = importlib.import_module(_CHECKS[parts.contract.task])
    report: Report = task.check_model(triton, options, model, parts, progress_bar)
    return report


def ask_all(
    ask: Callable[[AnyQuestion], AnyAnswer],
    questions: Iterable[AnyQuestion],
    total: int,
    triton: Triton,
    replies: Replies[AnyAnswer],
    on_progress: ReportProgress,
    threads: int = _IN_FLIGHT,
) -> None:
    """Fill `replies` with answers about `total` examples.

    A request that fails is noted and the others go on, unless the server is gone.
    """

    def reply_to(question: AnyQuestion) -> tuple[AnyQuestion, AnyAnswer | FailedRequest]:
        try:
            return question, ask(question)
        except GourmetError as exc:
            if isinstance(exc, TritonUnreachable) and not triton.is_live():
                raise
            return question, FailedRequest(question.names, str(exc))

    began = time.monotonic()
    try:
        for question, answer in in_threads(reply_to, questions, threads):
            replies.sent += len(question.names)
            if isinstance(answer, FailedRequest):
                replies.failures.append(answer)
            else:
                replies.answers.append(answer)
            rate = replies.sent / max(1e-9, time.monotonic() - began)
            on_progress(replies.sent / total, f"{replies.sent}/{total} · {rate:.0f}/s")
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


def percentiles_text(times_ms: Sequence[float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in percentiles(times_ms).items()) + " ms"


def first_of(reasons: Sequence[object]) -> str:
    """Join the first of several reasons."""
    return "; ".join([*map(str, reasons[:_SHOWN]), *(("…",) if len(reasons) > _SHOWN else ())])
