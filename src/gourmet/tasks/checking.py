"""A check of a served model of any task: what is wanted, what comes of it, and who does it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gourmet.errors import UsageError
from gourmet.serving.client import describe_model, triton
from gourmet.systems import registry
from gourmet.tasks.system_parts import Stage

if TYPE_CHECKING:
    from gourmet.tasks.classification.checking.report import Report
    from gourmet.tasks.generation.check import TextReport

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


def check(wanted: Wanted, stage: Stage) -> Report | TextReport:
    """Check a served model as its task wants it; Ctrl-C ends it early, with what was found by then."""
    with triton(wanted.url) as client:
        info = describe_model(client, wanted.model)
    if not info.system:
        raise UsageError(
            f"the config of {wanted.model!r} does not say which system it belongs to: give it "
            f'parameters {{ key: "system" value: {{ string_value: "…" }} }}, '
            f"one of {', '.join(registry.names())}"
        )
    if registry.load(info.system).task == "generation":
        from gourmet.tasks.generation.check import check_texts

        return check_texts(wanted, stage)
    from gourmet.tasks.classification.checking.check import check_pictures

    return check_pictures(wanted, stage)


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Of latencies; empty if there are none."""
    if not times_ms:
        return {}
    found = {f"p{q}": round(float(np.percentile(times_ms, q)), 2) for q in (50, 90, 95, 99)}
    return {**found, "max": round(max(times_ms), 2)}


def as_words(times_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in times_ms.items()) + " ms"


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
