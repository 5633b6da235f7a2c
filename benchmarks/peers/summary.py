"""Windows of all turns as one row an arm, and the ratios that were asked for, taken turn by turn."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gourmet.measure.comparison import goals_by_turn
from gourmet.measure.results import Requirement
from peers.contenders import CONTENDERS, FP32
from peers.run import QUIET_CORES, Comparison
from peers.windows import ContenderWindow

# The concurrency for which goals were set.
GOAL_CONCURRENCY: Final = 8


@dataclass(frozen=True)
class Row:
    """One arm with one kind of photos at one concurrency, over all turns."""

    arm: str
    photos: str
    concurrency: int
    photos_per_s: tuple[float, ...]
    answers: int
    errors: dict[str, int]
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms: dict[str, float]
    memory_mib: dict[str, float]
    client_cores: float
    foreign_cores: tuple[float, ...]
    how: tuple[str, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.photos_per_s)

    @property
    def disturbed(self) -> bool:
        return max(self.foreign_cores) > QUIET_CORES


def rows(results: Comparison) -> list[Row]:
    """All rows, in the order in which they were measured first."""
    groups: dict[tuple[str, str, int], list[ContenderWindow]] = {}
    for window in results.windows:
        # Which way of the limit was best may differ by turn; it is one arm all the same.
        concurrency = 0 if CONTENDERS[window.arm].role == "limit" else window.concurrency
        groups.setdefault((window.photos, window.arm, concurrency), []).append(window)
    return [_row(windows, concurrency) for (_, _, concurrency), windows in groups.items()]


def _row(windows: Sequence[ContenderWindow], concurrency: int) -> Row:
    latencies_ms = 1000 * np.concatenate([window.latencies_s for window in windows])
    # What answered nothing while the windows were open has no percentiles, and no answers to show for it.
    p50, p95, p99 = (
        (float(value) for value in np.percentile(latencies_ms, (50, 95, 99)))
        if latencies_ms.size
        else (float("inf"),) * 3
    )
    errors = Counter(error for window in windows for error in window.errors)
    return Row(
        windows[0].arm,
        windows[0].photos,
        concurrency,
        tuple(window.photos_per_s for window in windows),
        latencies_ms.size,
        dict(errors),
        p50,
        p95,
        p99,
        _medians(window.cpu_ms for window in windows),
        _medians(window.memory_mib for window in windows),
        statistics.median(window.client_cores for window in windows),
        tuple(window.foreign_cores for window in windows),
        tuple(window.how for window in windows if window.how),
    )


def _medians(each: Iterable[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for one in each:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.median(found) for name, found in values.items()}


def goals(results: Comparison) -> list[Requirement]:
    """What was asked for, as far as those take part who are needed to tell."""
    table = {(row.photos, row.arm, row.concurrency): row for row in rows(results)}
    # Ratios of what others took part in show how they fell, and not who is ahead.
    disturbed = any(row.disturbed for row in table.values())
    return [
        goal
        for photos in results.plan.photos
        for goal in _goals(
            photos,
            {
                arm.key: table[photos, arm.key, concurrency]
                for arm in CONTENDERS.values()
                for concurrency in [0 if arm.role == "limit" else GOAL_CONCURRENCY]
                if (photos, arm.key, concurrency) in table
            },
            disturbed,
        )
    ]


def _goals(photos: str, by_arm: Mapping[str, Row], disturbed: bool) -> list[Requirement]:
    found: list[Requirement] = []
    fp32, limit = by_arm.get("ours-fp32"), by_arm.get("limit-fp32")
    if fp32 and limit and photos == "small":
        what = f"{photos} photos, fp32: ours ÷ the limit"
        found += goals_by_turn(what, fp32.photos_per_s, limit.photos_per_s, wanted=0.85, disturbed=disturbed)
    peers = [
        row for key, row in by_arm.items() if CONTENDERS[key].role == "peer" and CONTENDERS[key].model == FP32
    ]
    if not peers:
        return found
    lowest_p99 = min(peer.p99_ms for peer in peers)
    for key, name, wanted in (
        ("ours-fp32", "fp32", 1.0 if photos == "small" else 2.0),
        ("ours-int8", "int8", 1.8),
    ):
        if ours := by_arm.get(key):
            what = f"{photos} photos, {name}: ours ÷ the best peer"
            rates = (peer.photos_per_s for peer in peers)
            found += goals_by_turn(what, ours.photos_per_s, *rates, wanted=wanted, disturbed=disturbed)
            what = f"{photos} photos, {name}: our p99 ÷ the lowest p99 of a peer"
            ratio = (ours.p99_ms / lowest_p99,)
            found.append(Requirement(what, ratio, 1.0, at_most=True, disturbed=disturbed))
    return found
