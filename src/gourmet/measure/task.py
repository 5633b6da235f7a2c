"""What to ask whom, how long to look, what must come back, and by which way a demand is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gourmet.errors import UsageError
from gourmet.measure.expected import Answers
from gourmet.measure.inputs import InputRows
from gourmet.measure.results import LoadSpec
from gourmet.measure.transports import App, StreamedGrpc, StreamedHttp, TritonGrpc, TritonHttp, Wire

Client = Literal["auto", "perf-analyzer", "gourmet"]


@dataclass(frozen=True)
class Addresses:
    """Where to ask, host:port each."""

    url: str = "localhost:8000"
    grpc_url: str = "localhost:8001"
    app_url: str = "localhost:5000"


@dataclass(frozen=True)
class MeasureOptions:
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
class Workload:
    """A model, what it is asked and what it must answer."""

    model: str
    rows: InputRows
    answers: Answers


def wire_for(target: Addresses, demand: LoadSpec, rows: InputRows, regions: Any = None) -> Wire:
    """The way of asking that a demand wants."""
    if demand.through == "app":
        return App(target.app_url, rows.pictures)
    if demand.protocol == "grpc":
        kind = StreamedGrpc if rows.info.decoupled else TritonGrpc
        return kind(target.grpc_url, demand.model, rows, regions)
    if rows.info.decoupled:
        return StreamedHttp(target.url, demand.model, rows)
    return TritonHttp(target.url, demand.model, rows, regions)


def check_possible(demand: LoadSpec, rows: InputRows, effort: MeasureOptions) -> None:
    """Raise UsageError for what cannot be asked."""
    if demand.batch > 1 and not rows.batched:
        raise UsageError(f"{demand.model} takes one input a request (max_batch_size 0): drop --batch")
    if demand.batch > 1 and not rows.alike:
        raise UsageError(f"the examples of {demand.model} differ in shape and share no request: drop --batch")
    if demand.through == "app" and (not rows.pictures or demand.batch > 1 or demand.shared_memory):
        raise UsageError("the web app takes one photo a request: no --batch, no --shared-memory, no tensors")
    if rows.info.decoupled and (demand.batch > 1 or demand.shared_memory):
        raise UsageError(
            f"{demand.model} answers in pieces (it is decoupled), one row a request: no --batch, "
            "no --shared-memory"
        )
    if effort.client == "perf-analyzer" and only_ours(demand, rows, effort):
        raise UsageError(
            "perf_analyzer measures closed loops at Triton with whole answers, and gives up at the first "
            "error: use --client gourmet for rates, streamed answers, the app and --allow-errors"
        )


def only_ours(demand: LoadSpec, rows: InputRows, effort: MeasureOptions) -> bool:
    """perf_analyzer does closed loops at Triton; the rest, and whatever may fail, is ours."""
    return (
        rows.info.decoupled
        or demand.arrivals != "closed"
        or demand.through == "app"
        or effort.errors_allowed > 0
    )
