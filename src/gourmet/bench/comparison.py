"""Compare a run with an earlier one, point by point.

A ratio is above or below a limit where its whole 95 % interval is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gourmet.bench import stats
from gourmet.bench.results import Bench, Estimate, Point
from gourmet.errors import GourmetError

# Windows of one run agree better than two runs do: the machine warms, memory lies elsewhere.
NOISE: Final = 0.05

Verdict = Literal["faster", "slower", "same"]


def above(figure: Estimate, limit: float) -> bool | None:
    """Return whether the whole interval lies above the limit, or below it; None if it holds the limit."""
    if figure.low is None or figure.high is None:
        return None
    if figure.low > limit:
        return True
    return False if figure.high < limit else None


def below(figure: Estimate, limit: float) -> bool | None:
    outcome = above(figure, limit)
    return None if outcome is None else not outcome


def _times_the_latency(ours: Point, theirs: Point) -> Estimate:
    """Return the ratio of two points' mean latencies."""
    our_means, their_means = ([window.mean_ms for window in point.windows] for point in (ours, theirs))
    return stats.ratio(our_means, their_means)


@dataclass(frozen=True)
class Pair:
    """The same load in both runs. Ratios are now ÷ before."""

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


def compare(before: Bench, now: Bench) -> list[Pair]:
    """Compare every point that both runs hold."""
    known = {point.name: point for point in before.points}
    pairs = [_pair(known[point.name], point) for point in now.points if point.name in known]
    if not pairs:
        earlier, later = (", ".join(point.name for point in bench.points[:4]) for bench in (before, now))
        raise GourmetError(
            f"the runs have no point in common: one has {earlier}, the other {later}; "
            "compare two runs of the same command"
        )
    return pairs


def differences(before: Bench, now: Bench) -> list[str]:
    """List what else differs between the runs."""
    names = sorted({*before.machine, *now.machine})
    changed = [name for name in names if before.machine.get(name) != now.machine.get(name)]
    lines = [f"{name}: {before.machine.get(name)} → {now.machine.get(name)}" for name in changed]
    return [*lines, f"data: {before.data} → {now.data}"] if before.data != now.data else lines


def refuse_slower(pairs: Sequence[Pair]) -> None:
    """Raise if a point regressed beyond noise."""
    worse = [pair for pair in pairs if pair.verdict == "slower"]
    if worse:
        worst = min(worse, key=lambda pair: pair.speed.value)
        raise GourmetError(
            f"{len(worse)} of {len(pairs)} points got slower by more than {NOISE:.0%} of noise, most "
            f"{worst.name}: throughput × {worst.rate:.2f}, mean latency × {worst.latency:.2f}"
        )


def _pair(before: Point, now: Point) -> Pair:
    rate, latency = stats.rate_ratio(now, before), _times_the_latency(now, before)
    # With a given rate of requests, only the latency counts.
    speed = rate if now.load.arrivals == "closed" else _times_the_latency(before, now)
    verdict: Verdict = "faster" if above(speed, 1 + NOISE) else "same"
    if below(speed, 1 - NOISE):
        verdict = "slower"
    return Pair(now.name, before, now, rate, latency, speed, verdict)
