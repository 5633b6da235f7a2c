"""Results of a benchmark, as values and as the JSON that is saved, compared and drawn.

A `Bench` is a run of `gourmet bench`: points, each one load on one model, with everything that one
needs to believe them. The JSON is these dataclasses as they stand; `SCHEMA` names their version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from gourmet.errors import GourmetError

FILE: Final = "bench.json"  # in the folder of a run
SCHEMA: Final[Literal["gourmet-bench/1"]] = "gourmet-bench/1"

Protocol = Literal["http", "grpc"]
Arrivals = Literal["closed", "constant", "poisson"]
# app: the web app asks Triton. loop: the client decodes, one request for each token.
Through = Literal["triton", "app", "loop"]


@dataclass(frozen=True)
class LoadSpec:
    """The load on a model: the protocol, the concurrency or rate, and the rows of a request.

    `level` is the number of requests kept in flight where arrivals are closed, else requests per second.
    """

    model: str
    level: float = 1
    arrivals: Arrivals = "closed"
    batch: int = 1
    protocol: Protocol = "http"
    through: Through = "triton"

    @property
    def at(self) -> str:
        """Return the concurrency or rate as text."""
        return f"c={self.level:g}" if self.arrivals == "closed" else f"{self.level:g}/s {self.arrivals}"

    @property
    def how(self) -> str:
        """Return the way of asking as text, if it is not the usual one."""
        parts = [f"b={self.batch}"] if self.batch > 1 else []
        parts += ["through the app"] if self.through == "app" else []
        parts += ["gRPC"] if self.protocol == "grpc" else []
        return " ".join(parts)

    def __str__(self) -> str:
        return f"{self.at} {self.how}".strip()


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % confidence interval, if there was more than one sample."""

    value: float
    low: float | None = None
    high: float | None = None

    def __format__(self, form: str) -> str:
        """Write the figure with its interval, unless both ends of that are the same when rounded."""
        value = f"{self.value:{form}}"
        if self.low is None or self.high is None or f"{self.low:{form}}" == f"{self.high:{form}}":
            return value
        return f"{value} ({self.low:{form}}–{self.high:{form}})"


@dataclass(frozen=True)
class Window:
    """One stretch of a measurement, or one turn of several."""

    requests_per_s: float
    mean_ms: float


@dataclass(frozen=True)
class Latency:
    """Latency seen by the client, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Split:
    """Parts of the mean latency in milliseconds: as Triton reports them, and the rest."""

    queue: float
    input: float
    infer: float
    output: float
    network: float

    @property
    def server(self) -> float:
        return self.queue + self.input + self.infer + self.output


@dataclass(frozen=True)
class BatchSize:
    """A batch size: its number of executions, and their time."""

    rows: int
    executions: int
    infer_ms: float


@dataclass(frozen=True)
class Stream:
    """Times of the pieces of streamed answers, in milliseconds."""

    first_ms: Latency
    between_ms: Latency | None  # None where every answer was one piece
    pieces_per_s: Estimate
    pieces_per_answer: float


@dataclass(frozen=True)
class Usage:
    """CPU and memory used during the measurement; None where the process runs elsewhere."""

    client_cores: float
    server_cores: float | None = None
    server_memory_mib: float | None = None
    app_cores: float | None = None
    app_memory_mib: float | None = None
    others_cores: float | None = None  # of all other programs


@dataclass(frozen=True)
class Evidence:
    """One reason to believe a point: the check, its result, and the limit; and why it failed, if it did."""

    name: str
    found: str
    allowed: str
    failure: str = ""


@dataclass(frozen=True)
class Point:
    """One load on one model, measured and believed."""

    arm: str
    load: Annotated[LoadSpec, Field(alias="demand")]  # as the JSON calls it
    rows_per_s: Estimate
    latency_ms: Latency
    split_ms: Split
    batches: tuple[BatchSize, ...]
    windows: tuple[Window, ...]
    requests: int
    errors: Mapping[str, int]
    usage: Usage
    checks: tuple[Evidence, ...]
    config: Mapping[str, Any]
    attempts: int = 1
    turns: int = 1
    stream: Stream | None = None
    # Bytes of what is asked and answered, both ways, a request; 0 where the client does not tell.
    transferred: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.arm} {self.load}"

    @property
    def rates(self) -> list[float]:
        """Rows per second by window, or by turn."""
        return [window.requests_per_s * self.load.batch for window in self.windows]

    @property
    def resolution(self) -> float:
        """The share by which the rate of a window may be off, since it counts whole requests."""
        return len(self.windows) / max(1, self.requests)

    @property
    def executed_rows(self) -> float:
        """The mean batch size that the network computed."""
        executions = sum(size.executions for size in self.batches)
        return sum(size.rows * size.executions for size in self.batches) / executions if executions else 0.0


@dataclass(frozen=True)
class Rejection:
    """A point that was measured and is not reported, with the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: Rejected: {self.reason}"


@dataclass(frozen=True)
class Bench:
    """A whole run, with the facts for a comparison with another run."""

    title: str
    command: str
    when: str
    machine: Mapping[str, str]
    data: str
    points: tuple[Point, ...]
    refused: tuple[Rejection, ...] = ()
    schema: Literal["gourmet-bench/1"] = SCHEMA


def as_json(bench: Bench) -> str:
    return json.dumps(as_data(bench), indent=1, ensure_ascii=False) + "\n"


def as_data(value: object) -> dict[str, Any]:
    """Return a dataclass as JSON data for a file."""
    data: dict[str, Any] = TypeAdapter(type(value)).dump_python(value, mode="json", by_alias=True)
    return data


def read_results(path: Path) -> Bench:
    """Read a saved benchmark, a folder or its JSON file; raise GourmetError if it is invalid."""
    path = path / FILE if path.is_dir() else path
    try:
        return TypeAdapter(Bench).validate_json(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise GourmetError(
            f"{path} is not a whole benchmark of {SCHEMA}: save one with `gourmet bench run … --save`: {exc}"
        ) from exc
