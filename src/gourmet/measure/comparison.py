"""Compare arms: ratios, goals by turn, claims of a lab, and a run with an earlier one.

A claim counts as seen only where the whole 95 % interval of its figure lies on the claim's side, and as not
seen only where the whole of it lies on the other; in between, these figures do not decide it. A goal is met
where every turn reaches it, and not met where none does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gourmet.errors import GourmetError
from gourmet.measure import stats
from gourmet.measure.results import Bench, Estimate, Point, Requirement, Statement

# Windows of one run agree better than two runs do: the machine warms, memory lies elsewhere.
NOISE: Final = 0.05

Outcome = bool | None  # None: undecided
# Whether a claim was seen, the figures that tell, and the ratio that was judged, where it is one.
Found = tuple[Outcome, str] | tuple[Outcome, str, Estimate]
Verdict = Literal["faster", "slower", "same"]


class NotMeasured(Exception):
    """A point that a claim needs was rejected or left out."""


def claim(words: str, look: Callable[[], Found]) -> Statement:
    """Return a claim with the figures that support it, contradict it, or leave it undecided."""
    try:
        seen, figures, *judged = look()
    except NotMeasured:
        return Statement(f"Not measured: {words}; a point that it needs was rejected or left out.")
    if seen is None:
        return Statement(f"Undecided: {words}; {_left_open(*judged)}: {figures}.")
    return Statement(f"{words}: {figures}." if seen else f"Not seen here: {words}; measured {figures}.", seen)


def _left_open(ratio: Estimate | None = None) -> str:
    """Return why a ratio decides nothing."""
    if ratio is None:
        return "the figures leave it open"
    if ratio.low is None or ratio.high is None:
        return "a single measurement has no interval"
    if ratio.low <= 1 <= ratio.high:
        return "the interval allows both"
    return "there is a difference, and two runs of the same may differ by as much"


def above(figure: Estimate, limit: float) -> Outcome:
    if figure.low is None or figure.high is None:
        return None
    return True if figure.low > limit else False if figure.high < limit else None


def below(figure: Estimate, limit: float) -> Outcome:
    outcome = above(figure, limit)
    return None if outcome is None else not outcome


def all_of(*outcomes: Outcome) -> Outcome:
    """Return True if all are seen, and False if one is not."""
    if False in outcomes:
        return False
    return None if None in outcomes else True


def more(ours: Point, theirs: Point) -> tuple[Outcome, str, Estimate]:
    """Return True if one point has more throughput than another, beyond noise."""
    gained = times_the_throughput(ours, theirs)
    rates = f"{ours.rows_per_s.value:.0f} against {theirs.rows_per_s.value:.0f} rows/s"
    return above(gained, 1 + NOISE), f"{rates}, {gained:.2f} times, at {ours.load}", gained


def times_the_throughput(ours: Point, theirs: Point) -> Estimate:
    """Return the ratio of two points' throughputs."""
    return stats.ratio(ours.rates, theirs.rates)


def times_the_latency(ours: Point, theirs: Point) -> Estimate:
    """Return the ratio of two points' mean latencies."""
    return stats.ratio(*([window.mean_ms for window in point.windows] for point in (ours, theirs)))


def over(points: Sequence[Point], show: Callable[[Point], str], label: Callable[[Point], str]) -> str:
    """Format a figure of several points: `0.8 (c=1), 12.1 (c=8)`."""
    return ", ".join(f"{show(point)} ({label(point)})" for point in points)


def goals_by_turn(
    what: str,
    ours: Sequence[float],
    *theirs: Sequence[float],
    wanted: float,
    at_most: bool = False,
    disturbed: bool = False,
) -> list[Requirement]:
    """Return the goal for ours ÷ the best of theirs: figures of arms measured in turns; more is better.

    Ratios are taken turn by turn, so that a machine that slows down in between favours neither. There is
    no goal if an arm was not measured in every turn.
    """
    if not ours or not theirs or any(len(figures) != len(ours) for figures in theirs):
        return []
    best = map(max, zip(*theirs, strict=True))
    ratios = tuple(mine / other if other else math.inf for mine, other in zip(ours, best, strict=True))
    return [Requirement(what, ratios, wanted, at_most, disturbed=disturbed)]


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


def compare(before: Bench, now: Bench, noise: float = NOISE) -> list[Pair]:
    """Compare every point that both runs hold."""
    known = {point.name: point for point in before.points}
    pairs = [_pair(known[point.name], point, noise) for point in now.points if point.name in known]
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


def refuse_slower(pairs: Sequence[Pair], noise: float = NOISE) -> None:
    """Raise if a point regressed beyond noise."""
    worse = [pair for pair in pairs if pair.verdict == "slower"]
    if worse:
        worst = min(worse, key=lambda pair: pair.speed.value)
        raise GourmetError(
            f"{len(worse)} of {len(pairs)} points got slower by more than {noise:.0%} of noise, most "
            f"{worst.name}: throughput × {worst.rate:.2f}, mean latency × {worst.latency:.2f}"
        )


def _pair(before: Point, now: Point, noise: float) -> Pair:
    rate, latency = times_the_throughput(now, before), times_the_latency(now, before)
    # Where the rate of requests was given, the latency is what counts.
    speed = rate if now.load.arrivals == "closed" else times_the_latency(before, now)
    verdict: Verdict = (
        "slower" if below(speed, 1 - noise) else "faster" if above(speed, 1 + noise) else "same"
    )
    return Pair(now.name, before, now, rate, latency, speed, verdict)
