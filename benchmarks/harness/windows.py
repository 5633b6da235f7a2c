"""Measure a contender under a load during a window: its answers, and its use of the machine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import psutil

from gourmet.errors import UsageError
from gourmet.measure.async_client import Load
from gourmet.measure.results import LoadSpec
from gourmet.measure.server_probe import cpu_s, memory_mib, spent_s, tree
from gourmet.measure.task import MeasureOptions
from gourmet.measure.transports import RawReply, Request, Wire

FIRST_PIECE_MS: Final = "first piece ms"


@dataclass(frozen=True)
class BenchLoad:
    """The load on an arm: its inputs, and the number of requests in flight."""

    arm: str
    inputs: str
    level: int


@dataclass(frozen=True)
class BenchWindow:
    """The results of an arm under a load while the window was open."""

    load: BenchLoad
    seconds: float
    latencies_ms: tuple[float, ...]
    foreign_cores: float
    errors: Mapping[str, int] = field(default_factory=dict)
    client_cores: float = 0.0
    cpu_ms: Mapping[str, float] = field(default_factory=dict)  # for an answer, by group of processes
    memory_mib: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.latencies_ms:
            where = f"{self.load.arm}, {self.load.inputs}, {self.load.level} at a time"
            why = ", ".join(self.errors) or "take a longer --window"
            raise UsageError(f"{where}: no answer in {self.seconds:.1f} s: {why}")

    @property
    def per_s(self) -> float:
        return len(self.latencies_ms) / self.seconds

    @property
    def percentiles_ms(self) -> tuple[float, float, float]:
        return percentiles(self.latencies_ms)


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return p50, p95 and p99."""
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return p50, p95, p99


@dataclass(frozen=True)
class CpuUsed:
    """CPU seconds up to now: of each group of processes, of the bench with its children, and of all."""

    groups: Mapping[str, Mapping[int, float]]
    bench: Mapping[int, float]
    machine: float

    @classmethod
    def now(cls, groups: Mapping[str, int] | None = None) -> CpuUsed:
        """Read the CPU seconds; `groups` maps names to the root process of each group."""
        busy = psutil.cpu_times()
        return cls(
            {name: cpu_s(tree(pid)) for name, pid in (groups or {}).items()},
            cpu_s(tree(os.getpid())),
            busy.user + busy.nice + busy.system,
        )

    def foreign_since(self, before: CpuUsed) -> float:
        """Return the CPU seconds of processes outside the bench."""
        return max(0.0, self.machine - before.machine - spent_s(before.bench, self.bench))


class Meter:
    """Measures windows; `groups` are the processes to account for, by name."""

    def __init__(self, groups: Mapping[str, int] | None = None) -> None:
        self._groups = groups
        self._looks: list[CpuUsed] = []

    def look(self) -> None:
        self._looks.append(CpuUsed.now(self._groups))

    def window(
        self,
        load: BenchLoad,
        traffic: Load,
        figures: Mapping[str, float] | None = None,
        counts: Callable[[Request], int] = lambda _request: 1,
    ) -> BenchWindow:
        """Return the window of `traffic`, whose mark was `look`.

        `counts` returns the number of answers to a request.
        """
        before, after = self._looks
        due, _, done = traffic.arrays()
        held, seconds = traffic.holds(done), traffic.ended - traffic.began
        answers = np.array([counts(request) for request in traffic.answered], int)
        latencies_ms = tuple(np.repeat(1000 * (done - due)[held], answers[held]).tolist())
        first_ms = [
            1000 * (moments[0] - at) for moments, at in zip(traffic.pieces, due, strict=True) if moments
        ]
        return BenchWindow(
            load,
            seconds,
            latencies_ms,
            after.foreign_since(before) / seconds,
            traffic.errors,
            traffic.client_cores,
            {
                name: 1000 * spent_s(before.groups[name], busy) / max(1, len(latencies_ms))
                for name, busy in after.groups.items()
            },
            {name: memory_mib(tree(pid)) for name, pid in (self._groups or {}).items()},
            {
                "requests": traffic.requests_sent / max(1, len(done)),
                "bytes": traffic.transferred / max(1, len(done)),
                **({FIRST_PIECE_MS: float(np.median(first_ms))} if first_ms else {}),
                **(figures or {}),
            },
        )


def window(
    load: BenchLoad,
    wire: Wire,
    requests: Iterable[Request],
    check: Callable[[Request, RawReply], None],
    options: MeasureOptions,
    *,
    groups: Mapping[str, int] | None = None,
    figures: Mapping[str, float] | None = None,
) -> BenchWindow:
    """Send the requests again and again, `load.level` at a time, and check every answer."""
    meter, level = Meter(groups), LoadSpec(load.arm, load.level)
    times = options.warm_up_s, options.measure_s
    return meter.window(
        load, Load(wire, itertools.cycle(requests), level, check, *times, meter.look).run(), figures
    )
