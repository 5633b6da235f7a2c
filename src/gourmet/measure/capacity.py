"""What many requests take, from what one costs here: nodes, memory, bytes, money, and what runs out first.

A node is the machine that was measured, times its cores: as many more instances, which share nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.measure import queueing
from gourmet.measure.queueing import Servers
from gourmet.measure.results import Bench, LoadSpec, Through
from gourmet.reports import chart
from gourmet.reports.chart import Series
from gourmet.runtime.bounded_reading import in_short
from gourmet.runtime.instances import parameter

_RATES: Final = (10.0, 1_000.0, 100_000.0)
_LOADS: Final = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96)
_HOUR_S: Final = 3600
_MOST: Final = 4096  # of a machine's cores, and of what a model works on at a time
HEADINGS: Final = (
    *("requests/s", "nodes", "cores", "GiB", "Gbit/s", "p50 ms", "p99 ms", "an hour", "a million"),
    "runs out first",
)


@dataclass(frozen=True)
class CapacityGoal:
    """What a reader wants, and has."""

    p99_ms: float
    rates: tuple[float, ...] = _RATES
    cores: int = 8  # of a node
    price: float = 0.05  # of a core for an hour
    gigabits: float = 10.0  # a second, of one address
    reads: float = 5_500.0  # a second, of an object store


@dataclass(frozen=True)
class RequestCost:
    """Measured of a request while all instances are busy; memory is of the whole stack."""

    model: str
    cpus: int
    servers: Servers
    triton_cpu_ms: float
    app_cpu_ms: float | None  # None where Triton was asked directly
    memory_mib: float
    transferred: float

    @property
    def cpu_ms(self) -> float:
        return self.triton_cpu_ms + (self.app_cpu_ms or 0.0)

    @property
    def busy(self) -> float:
        """The share of the cores that were at work for it at most; others may have had the rest."""
        return self.servers.rate_per_s * self.cpu_ms / 1000 / self.cpus

    def __str__(self) -> str:
        app = "without the web app" if self.app_cpu_ms is None else f"the web app {self.app_cpu_ms:.2f}"
        return (
            f"{self.model}: a request costs {self.cpu_ms:.2f} ms of CPU (Triton {self.triton_cpu_ms:.2f}, "
            f"{app}) and {self.transferred / 1000:.1f} kB; {self.memory_mib:.0f} MiB; on {self.cpus} cores "
            f"{self.servers.rate_per_s:.0f} a second at most, {self.servers.count} at a time; "
            f"alone p50 {self.servers.alone_ms.p50:.1f} ms, p99 {self.servers.alone_ms.p99:.1f} ms"
        )


@dataclass(frozen=True)
class CapacityRow:
    """What a rate takes."""

    rate: float
    nodes: int
    cores: int
    memory_gib: float
    gigabits: float
    p50_ms: float
    p99_ms: float
    price_an_hour: float
    price_a_million: float
    runs_out_first: str

    def cells(self) -> tuple[str, ...]:
        counts = (f"{self.rate:,g}", f"{self.nodes:,}", f"{self.cores:,}", f"{self.memory_gib:,.1f}")
        times = (f"{self.gigabits:.3g}", f"{self.p50_ms:.1f}", f"{self.p99_ms:.1f}")
        return (
            *counts,
            *times,
            f"{self.price_an_hour:,.2f}",
            f"{self.price_a_million:,.2f}",
            self.runs_out_first,
        )


@dataclass(frozen=True)
class CapacityPlan:
    goal: CapacityGoal
    cost: RequestCost
    node: Servers
    node_rate: float
    rows: tuple[CapacityRow, ...]

    def says(self) -> str:
        """In a sentence."""
        return (
            f"A node of {self.goal.cores} cores answers {self.node_rate:.0f} a second within a p99 of "
            f"{self.goal.p99_ms:g} ms, {self.node_rate / self.node.rate_per_s:.0%} of what it can do at most."
        )

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        return HEADINGS, [row.cells() for row in self.rows]


def at_a_time(config: Mapping[str, Any]) -> int:
    """How many requests a model works on: its instances, and of a loop the rows that it works on together."""
    instances = sum(int(group.get("count", 1)) for group in config.get("instance_group") or [{}])
    return instances * int(parameter(config, "rows_at_once") or 1)


def loads(config: Mapping[str, Any], through: Through) -> list[LoadSpec]:
    """One request at a time, and as many as keep all instances busy."""
    return [LoadSpec(config["name"], level, through=through) for level in (1, 2 * at_a_time(config))]


def cost_of(bench: Bench) -> RequestCost:
    """Out of a run with a request at a time and one with many, from here or saved by `gourmet bench run`."""
    closed = [point for point in bench.points if point.load.arrivals == "closed" and point.load.batch == 1]
    alone = next((point for point in closed if point.load.level == 1), None)
    full = max(closed, key=lambda point: point.rows_per_s.value, default=None)
    if alone is None or full is None or full is alone:
        raise GourmetError(
            "a request at a time and many at a time are needed of one model: "
            "`gourmet bench run MODEL --concurrency 1,8 --client gourmet --save FOLDER`"
        )
    used, rate = full.usage, full.rows_per_s.value
    if used.server_cores is None or not full.transferred:
        raise GourmetError(
            "what a request costs is known of a stack on this machine, measured by --client gourmet, only"
        )
    try:
        cpus, count = int(bench.machine["cpus"].split()[0]), at_a_time(full.config)
        took = [float(ms) for ms in vars(alone.latency_ms).values()]
        if not (0 < cpus <= _MOST and 0 < count <= _MOST and all(map(math.isfinite, (*took, rate)))):
            raise ValueError("its figures are of no machine")
        if min(*took, rate) <= 0:
            raise ValueError("a rate and times are above 0")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        raise GourmetError(f"this run was not saved by `gourmet bench`: {in_short(exc)}") from exc
    return RequestCost(
        full.load.model,
        cpus,
        Servers(count, alone.latency_ms, rate),
        1000 * used.server_cores / rate,
        None if used.app_cores is None else 1000 * used.app_cores / rate,
        (used.server_memory_mib or 0.0) + (used.app_memory_mib or 0.0),
        full.transferred,
    )


def plan(cost: RequestCost, goal: CapacityGoal) -> CapacityPlan:
    """Raise GourmetError where no number of nodes reaches the goal."""
    node = cost.servers.times(goal.cores / cost.cpus)
    best = queueing.highest_rate(node, goal.p99_ms)
    if best is None:
        raise GourmetError(
            f"a p99 of {goal.p99_ms:g} ms is out of reach on any number of nodes: requests alone have "
            f"{cost.servers.alone_ms.p99:.1f} ms"
        )
    rows = tuple(_row(cost, goal, node, best, rate) for rate in goal.rates)
    return CapacityPlan(goal, cost, node, best, rows)


def _row(cost: RequestCost, goal: CapacityGoal, node: Servers, best: float, rate: float) -> CapacityRow:
    nodes = math.ceil(rate / best)
    p50, p99 = queueing.p50_and_p99_ms(node, rate / nodes)
    an_hour = nodes * goal.cores * goal.price
    gigabits = 8 * rate * cost.transferred / 1e9
    return CapacityRow(
        rate,
        nodes,
        nodes * goal.cores,
        nodes * cost.memory_mib * goal.cores / cost.cpus / 1024,
        gigabits,
        p50,
        p99,
        an_hour,
        an_hour / (rate * _HOUR_S / 1e6),
        _runs_out_first(
            cost, goal, best / node.rate_per_s, {"nodes": nodes, "gigabits": gigabits, "rate": rate}
        ),
    )


def _runs_out_first(cost: RequestCost, goal: CapacityGoal, fullest: float, of: Mapping[str, float]) -> str:
    """Nodes are added beside each other; an address and a prefix of an object store are one each."""
    if of["gigabits"] > goal.gigabits:
        return f"network: {of['gigabits'] / goal.gigabits:.1f} addresses of {goal.gigabits:g} Gbit/s"
    if of["rate"] > goal.reads:
        return f"object store, where inputs come from one: {of['rate'] / goal.reads:.0f} prefixes"
    if of["nodes"] == 1:
        return "nothing: one node is enough"
    app = cost.app_cpu_ms or 0.0
    cores = "the web app's cores" if app > cost.triton_cpu_ms else "Triton's cores"
    where = f"{cores} ({max(app, cost.triton_cpu_ms) / cost.cpu_ms:.0%} of the CPU time)"
    return where if fullest > 0.9 else f"the queue, at {fullest:.0%} of {where}"


def curve(made: CapacityPlan) -> chart.Drawing:
    """Latency against load of a node, up to three times the goal."""
    rates = [share * made.node.rate_per_s for share in _LOADS]
    seen = [(rate, *queueing.p50_and_p99_ms(made.node, rate)) for rate in rates]
    shown = [each for each in seen if each[2] <= 3 * made.goal.p99_ms] or seen[:2]
    return chart.lines(
        [
            Series(name, [(each[0], each[place]) for each in shown], colour, radii=[3] * len(shown))
            for place, name, colour in ((1, "p50", chart.COLOURS[0]), (2, "p99", chart.COLOURS[1]))
        ],
        "latency against load of a node, simulated",
        ("requests per second", "latency, ms"),
        x_range=(0, made.node.rate_per_s),
        y_range=(0, max(made.goal.p99_ms, *(each[2] for each in shown))),
        marks=[(made.node_rate, "planned at most")],
    )
