"""A measurement as a value: what to ask whom, how long, and what must come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gourmet.bench import triton_counts
from gourmet.bench.answers import Answers
from gourmet.bench.results import Demand, Usage
from gourmet.bench.rows import Rows
from gourmet.bench.triton_counts import Counts
from gourmet.bench.usage import ServerProcesses, Spent
from gourmet.bench.wire import App, TritonGrpc, TritonHttp, Wire
from gourmet.errors import UsageError

Client = Literal["auto", "perf-analyzer", "gourmet"]
OnTime = Callable[[float], None]


@dataclass(frozen=True)
class Target:
    """Where to ask, host:port each."""

    url: str = "localhost:8000"
    grpc_url: str = "localhost:8001"
    app_url: str = "localhost:5000"


@dataclass(frozen=True)
class Effort:
    """How long to look, and what to put up with."""

    window_s: float = 1.0
    windows: int = 5
    warm_up_s: float = 1.0
    attempts: int = 3
    steadiness: float = 0.10
    errors_allowed: float = 0.0
    client: Client = "auto"

    @property
    def measure_s(self) -> float:
        return self.windows * self.window_s


@dataclass(frozen=True)
class Subject:
    """A model, what it is asked and what it must answer."""

    model: str
    rows: Rows
    answers: Answers


@dataclass(frozen=True)
class Task:
    """One demand on one subject; `on_time` is told the share of it that is done."""

    subject: Subject
    demand: Demand
    target: Target
    effort: Effort
    config: Mapping[str, Any]
    on_time: OnTime

    @property
    def rows(self) -> Rows:
        return self.subject.rows

    @property
    def for_perf_analyzer(self) -> bool:
        """perf_analyzer does closed loops at Triton; the rest, and whatever may fail, is ours."""
        demand, effort = self.demand, self.effort
        able = demand.arrivals == "closed" and demand.through == "triton" and not effort.errors_allowed
        return able and effort.client != "gourmet"


def wire_for(target: Target, demand: Demand, rows: Rows, regions: Any = None) -> Wire:
    """The way of asking that a demand wants."""
    if demand.through == "app":
        return App(target.app_url, rows.pictures)
    if demand.protocol == "grpc":
        return TritonGrpc(target.grpc_url, demand.model, rows, regions)
    return TritonHttp(target.url, demand.model, rows, regions)


def check_possible(demand: Demand, rows: Rows, effort: Effort) -> None:
    """Raise UsageError for what cannot be asked."""
    if demand.batch > 1 and not rows.batched:
        raise UsageError(f"{demand.model} takes one input a request (max_batch_size 0): drop --batch")
    if demand.through == "app" and (not rows.pictures or demand.batch > 1 or demand.shared_memory):
        raise UsageError("the web app takes one photo a request: no --batch, no --shared-memory, no tensors")
    only_ours = demand.arrivals != "closed" or demand.through == "app" or effort.errors_allowed > 0
    if effort.client == "perf-analyzer" and only_ours:
        raise UsageError(
            "perf_analyzer measures closed loops at Triton, and gives up at the first error: "
            "use --client gourmet for rates, the app and --allow-errors"
        )


class Watch:
    """Looks at the server when a measurement begins and when it ends."""

    def __init__(self, target: Target, demand: Demand) -> None:
        self._url, self._model = target.url, demand.model
        self._triton = ServerProcesses(target.url)
        self._app = ServerProcesses(target.app_url) if demand.through == "app" else None
        self._spent: list[tuple[Spent | None, Spent | None]] = []
        self._counts: list[Counts] = []
        self._times: list[float] = []
        self._memory: tuple[float | None, float | None] = (None, None)

    def look(self) -> None:
        self._times.append(time.monotonic())
        self._counts.append(triton_counts.look(self._url, self._model))
        self._spent.append((self._triton.spent(), self._app.spent() if self._app else None))
        if len(self._spent) > 1:
            self._memory = (self._triton.memory_mib(), self._app.memory_mib() if self._app else None)

    @property
    def counted(self) -> Counts:
        return self._counts[-1].since(self._counts[0])

    @property
    def seconds(self) -> float:
        return self._times[-1] - self._times[0]

    def usage(self, client_cores: float) -> Usage:
        first, last = self._spent[0], self._spent[-1]
        return Usage(
            client_cores,
            self._triton.cores(first[0], last[0]),
            self._memory[0],
            self._app.cores(first[1], last[1]) if self._app else None,
            self._memory[1],
        )
