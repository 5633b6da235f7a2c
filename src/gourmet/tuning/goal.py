"""What a config is wanted for: the load, what counts under it, and what may be tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gourmet.measure import stats
from gourmet.measure.results import Estimate, LoadSpec, Point, Protocol
from gourmet.runtime.instances import available_cpus

Kind = Literal["throughput", "latency"]


@dataclass(frozen=True)
class TuneRequest:
    """What somebody asks for; None leaves it to the machine and the model.

    The goal is most rows a second, or the lowest p95 at the heaviest load; neither with a p95 above
    the limit.
    """

    model: str
    kind: Kind = "throughput"
    p95_ms: float | None = None
    levels: tuple[float, ...] | None = None
    batch: int = 1
    protocol: Protocol = "http"
    instances: tuple[int, ...] | None = None
    threads: tuple[int, ...] | None = None
    max_batches: tuple[int, ...] | None = None
    delays_us: tuple[int, ...] | None = None
    preferred: tuple[int, ...] | None = None
    turns: int = 5
    apply: bool = False
    cpus: int = field(default_factory=available_cpus)

    @property
    def demands(self) -> tuple[LoadSpec, ...]:
        """Few requests in flight, as many as keep the CPUs busy, and so many that they wait in line."""
        busy = 2.0 * self.cpus
        levels = self.levels or ((busy,) if self.kind == "latency" else (1.0, busy, 4 * busy))
        return tuple(LoadSpec(self.model, each, batch=self.batch, protocol=self.protocol) for each in levels)

    @property
    def heaviest(self) -> float:
        return max(demand.level for demand in self.demands)

    def __str__(self) -> str:
        limit = f" with a p95 of at most {self.p95_ms:g} ms" if self.p95_ms is not None else ""
        if self.kind == "throughput":
            return f"most rows a second{limit}"
        return f"the lowest p95 with {self.heaviest:g} requests in flight{limit}"

    def keeps(self, point: Point) -> bool:
        """Whether a point is under the limit, and one that the goal is about."""
        if self.p95_ms is not None and point.latency_ms.p95 > self.p95_ms:
            return False
        return self.kind == "throughput" or point.demand.level == self.heaviest

    def value(self, point: Point) -> float:
        """The more, the better."""
        return point.rows_per_s.value if self.kind == "throughput" else 1 / point.latency_ms.p95

    def best(self, points: Iterable[Point]) -> Point | None:
        """Of a config's points, the one that it would be run at."""
        return max(filter(self.keeps, points), key=self.value, default=None)

    def rank(self, points: Sequence[Point]) -> tuple[int, float]:
        """For sorting configs: those under the limit by what they reach, the others by how near they are."""
        if not points:
            return -1, 0.0
        best = self.best(points)
        return (1, self.value(best)) if best else (0, -nearest(points).latency_ms.p95)

    def gain(self, ours: Point, theirs: Point) -> Estimate:
        """How many times better one point is than another; both are of several turns."""
        if self.kind == "throughput":
            return stats.ratio(ours.rates, theirs.rates)
        return stats.ratio(p95s(theirs), p95s(ours))


def nearest(points: Iterable[Point]) -> Point:
    return min(points, key=lambda point: point.latency_ms.p95)


def p95s(point: Point) -> list[float]:
    return [window.p95_ms for window in point.windows if window.p95_ms is not None]
