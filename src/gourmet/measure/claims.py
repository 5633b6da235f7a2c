"""What a lab teaches, held against figures: seen, not seen, or undecided.

A claim counts as seen only where the whole 95 % interval of its figure lies on the claim's side, and as not
seen only where the whole of it lies on the other; in between, these figures do not decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gourmet.measure import stats
from gourmet.measure.results import Estimate, Point, Statement

# Windows of one run agree better than two runs do: the machine warms, memory lies elsewhere.
NOISE: Final = 0.05

Outcome = bool | None  # None: undecided
# Whether a claim was seen, and the figures that tell.
Found = tuple[Outcome, str]


class NotMeasured(Exception):
    """A point that a claim needs was rejected or left out."""


def claim(words: str, look: Callable[[], Found]) -> Statement:
    """What was expected, with the figures that show it, contradict it, or leave it open."""
    try:
        seen, figures = look()
    except NotMeasured:
        return Statement(f"Not measured: {words}; a point that it needs was rejected or left out.")
    if seen is None:
        return Statement(f"Undecided: {words}; the interval allows both: {figures}.")
    return Statement(f"{words}: {figures}." if seen else f"Not seen here: {words}; measured {figures}.", seen)


def above(figure: Estimate, limit: float) -> Outcome:
    if figure.low is None or figure.high is None:
        return None
    return True if figure.low > limit else False if figure.high < limit else None


def below(figure: Estimate, limit: float) -> Outcome:
    found = above(figure, limit)
    return None if found is None else not found


def all_of(*outcomes: Outcome) -> Outcome:
    """Seen where each is, not seen where one is not."""
    if False in outcomes:
        return False
    return None if None in outcomes else True


def more(ours: Point, theirs: Point) -> Found:
    """Whether one point has more throughput than another, beyond noise."""
    gained = times_the_throughput(ours, theirs)
    rates = f"{ours.rows_per_s.value:.0f} against {theirs.rows_per_s.value:.0f} rows/s"
    return above(gained, 1 + NOISE), f"{rates}, {gained:.2f} times, at {ours.demand}"


def times_the_throughput(ours: Point, theirs: Point) -> Estimate:
    """How many times the throughput of one point that of another is."""
    return stats.ratio(ours.rates, theirs.rates)


def times_the_latency(ours: Point, theirs: Point) -> Estimate:
    """How many times as long a request of one point takes on average as one of another."""
    return stats.ratio(*([window.mean_ms for window in point.windows] for point in (ours, theirs)))


def over(points: Sequence[Point], show: Callable[[Point], str], label: Callable[[Point], str]) -> str:
    """A figure of several points in a row: `0.8 (c=1), 12.1 (c=8)`."""
    return ", ".join(f"{show(point)} ({label(point)})" for point in points)
