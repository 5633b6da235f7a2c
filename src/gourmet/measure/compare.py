"""Two saved runs side by side: how much faster or slower, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gourmet.errors import GourmetError
from gourmet.measure.claims import NOISE, above, below, times_the_latency, times_the_throughput
from gourmet.measure.results import Bench, Estimate, Point

Verdict = Literal["faster", "slower", "same"]


class NothingInCommon(GourmetError):
    """Two runs that measured different things."""


class Slower(GourmetError):
    """A regression beyond noise."""


@dataclass(frozen=True)
class Pair:
    """The same demand in both runs; ratios are now ÷ before."""

    name: str
    before: Point
    now: Point
    rate: Estimate
    latency: Estimate
    speed: Estimate
    verdict: Verdict

    @property
    def p95(self) -> float:
        return self.now.latency_ms.p95 / self.before.latency_ms.p95


def compare(before: Bench, now: Bench, noise: float = NOISE) -> list[Pair]:
    """Every point that both runs hold."""
    known = {point.name: point for point in before.points}
    pairs = [_pair(known[point.name], point, noise) for point in now.points if point.name in known]
    if not pairs:
        one, other = (", ".join(point.name for point in bench.points[:4]) for bench in (before, now))
        raise NothingInCommon(
            f"the runs have no point in common: one has {one}, the other {other}; "
            "compare two runs of the same command"
        )
    return pairs


def differences(before: Bench, now: Bench) -> list[str]:
    """What else changed between the runs, for a reader to weigh."""
    names = sorted({*before.machine, *now.machine})
    changed = [name for name in names if before.machine.get(name) != now.machine.get(name)]
    said = [f"{name}: {before.machine.get(name)} → {now.machine.get(name)}" for name in changed]
    return [*said, f"data: {before.data} → {now.data}"] if before.data != now.data else said


def refuse_slower(pairs: Sequence[Pair], noise: float = NOISE) -> None:
    worse = [pair for pair in pairs if pair.verdict == "slower"]
    if worse:
        worst = min(worse, key=lambda pair: pair.speed.value)
        raise Slower(
            f"{len(worse)} of {len(pairs)} points got slower by more than {noise:.0%} of noise, most "
            f"{worst.name}: throughput × {worst.rate:.2f}, mean latency × {worst.latency:.2f}"
        )


def _pair(before: Point, now: Point, noise: float) -> Pair:
    rate, latency = times_the_throughput(now, before), times_the_latency(now, before)
    # Where the rate of requests was given, the latency is what counts.
    speed = rate if now.demand.arrivals == "closed" else times_the_latency(before, now)
    verdict: Verdict = (
        "slower" if below(speed, 1 - noise) else "faster" if above(speed, 1 + noise) else "same"
    )
    return Pair(now.name, before, now, rate, latency, speed, verdict)
