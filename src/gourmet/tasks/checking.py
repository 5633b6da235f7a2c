"""A check of a served model of any task: what is wanted, what comes of it, and who does it."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from gourmet.contracts import Task
from gourmet.errors import UsageError
from gourmet.serving.client import describe_model, triton
from gourmet.systems import registry
from gourmet.tasks.furniture import Stage

# Each has a function `check`.
_MODULES: Final[dict[Task, str]] = {
    "classification": "gourmet.tasks.classification.checking.check",
    "generation": "gourmet.tasks.generation_check",
}
Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Wanted:
    """What to check, and how; what a task has no use for it passes over."""

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


class CheckReport(Protocol):
    """What a check found; Ctrl-C ends it early, with what it had by then."""

    @property
    def stopped(self) -> bool: ...

    def faults(self) -> list[str]:
        """Why the check fails, a sentence each; empty if it passes."""

    def progress(self) -> str:
        """How much of it was done, for a check that was stopped."""

    def as_dict(self) -> dict[str, Any]: ...

    def summary(self) -> str:
        """For a terminal."""

    def page(self) -> str:
        """As HTML."""


def check(wanted: Wanted, stage: Stage) -> CheckReport:
    """Check a served model as its task wants it."""
    with triton(wanted.url) as client:
        info = describe_model(client, wanted.model)
    if not info.system:
        raise UsageError(
            f"the config of {wanted.model!r} does not say which system it belongs to: give it "
            f'parameters {{ key: "system" value: {{ string_value: "…" }} }}, '
            f"one of {', '.join(registry.names())}"
        )
    module = importlib.import_module(_MODULES[registry.load(info.system).task])
    report: CheckReport = module.check(wanted, stage)
    return report


def in_threads(
    ask: Callable[[Question], Answer], questions: Iterable[Question], threads: int
) -> Iterator[Answer]:
    """The answers in the order of the questions, which are read as they are needed."""
    pool = ThreadPoolExecutor(threads)
    under_way: deque[Future[Answer]] = deque()
    try:
        for question in questions:
            under_way.append(pool.submit(ask, question))
            if len(under_way) == 2 * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
