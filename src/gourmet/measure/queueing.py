"""How long requests wait at so many servers, simulated from what was measured of one machine.

Requests come at any moment, first come first served, to so many servers: the instances of a model, times the
rows that one works on together. Two measurements say what a server does: requests one at a time, and as many
as keep all servers busy. Where a server is held for a shorter time than an answer takes, the rest (network,
what others do) holds nobody up; where servers disturb each other, a request takes longer the more of them
are at work.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from gourmet.measure.results import Latency
from gourmet.measure.stats import Array

_SEED: Final = 1
REQUESTS: Final = 20_000
# A server that is never free has no latency to speak of.
_FULLEST: Final = 0.98
_STEPS: Final = 10


@dataclass(frozen=True)
class Servers:
    """What was measured: latencies of requests one at a time, and the rate with all `count` servers busy."""

    count: int
    alone_ms: Latency
    rate_per_s: float

    @property
    def held_ms(self) -> float:
        """For how long a request holds a server while all are busy."""
        return 1000 * self.count / self.rate_per_s

    @property
    def outside_ms(self) -> float:
        """How much of a latency holds no server."""
        return max(0.0, self.alone_ms.mean - self.held_ms)

    def drawn_ms(self, shares: Array) -> Array:
        """Latencies of requests alone at these shares of all, between the percentiles that were measured.

        The least is such that the mean is the measured one.
        """
        took = self.alone_ms
        above = (
            0.4 * (took.p50 + took.p90) + 0.05 * (took.p90 + took.p95) + 0.04 * (took.p95 + took.p99)
        ) / 2
        least = float(np.clip(4 * (took.mean - above - 0.01 * took.p99) - took.p50, 0.0, took.p50))
        at = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
        return np.interp(shares, at, (least, took.p50, took.p90, took.p95, took.p99, took.p99))

    def times(self, factor: float) -> Servers:
        """The same on a machine of so many times the cores."""
        count = max(1, round(factor * self.count))
        return Servers(count, self.alone_ms, self.rate_per_s * count / self.count)


def poisson(rate_per_s: float, requests: int = REQUESTS) -> Array:
    """Moments in seconds; at another rate the same ones, nearer to or further from each other."""
    return np.random.default_rng(_SEED).exponential(1 / rate_per_s, requests).cumsum()


def latencies_ms(servers: Servers, due_s: Array) -> Array:
    """What the client of each request sees."""
    outside = servers.outside_ms
    alone = servers.drawn_ms(np.random.default_rng(_SEED + 1).random(len(due_s))) - outside
    slower = servers.held_ms / (servers.alone_ms.mean - outside) - 1  # 0 where they do not disturb each other
    by_others = slower / max(1, servers.count - 1)
    ends, seen = list[float](), np.empty(len(due_s))  # of the requests at work, the next first
    alone_ms = np.maximum(alone, 0.0).tolist()
    for number, (due, ms) in enumerate(zip((1000 * due_s).tolist(), alone_ms, strict=True)):
        while ends and ends[0] <= due:
            heapq.heappop(ends)
        begins = heapq.heappop(ends) if len(ends) == servers.count else due
        ended = begins + ms * (1 + by_others * len(ends))
        heapq.heappush(ends, ended)
        seen[number] = ended - due + outside
    return seen


def p50_and_p99_ms(servers: Servers, rate_per_s: float) -> tuple[float, float]:
    p50, p99 = np.percentile(latencies_ms(servers, poisson(rate_per_s)), (50, 99))
    return float(p50), float(p99)


def highest_rate(servers: Servers, p99_ms: float) -> float | None:
    """At which the p99 stays within the goal; None where that of requests alone does not."""
    low, high = 0.0, _FULLEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        within = p50_and_p99_ms(servers, middle * servers.rate_per_s)[1] <= p99_ms
        low, high = (middle, high) if within else (low, middle)
    return low * servers.rate_per_s or None
