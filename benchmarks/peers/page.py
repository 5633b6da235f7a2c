"""The comparison as a part of docs/measuring.md, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet.reports.chart import Drawing, stacked
from gourmet.reports.table import markdown
from harness.report import (
    HEADINGS,
    BenchRow,
    DocsPart,
    Requirement,
    chart,
    median_and_range,
    ratio_goal,
    rows_of,
)
from harness.run import Outcome
from harness.windows import BenchWindow
from peers.contenders import ARMS
from peers.photos import PhotoSet

REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
PART: Final = DocsPart("make bench-peers", "measuring.md")
PICTURE: Final = "peers.svg"
# The concurrency for which goals were set.
GOAL_LEVEL: Final = 8
_COLOURS: Final = {"no server": "#9e9e9e", "ours": "#1b5e9b", "peers": "#c98a1b"}
_HEADINGS: Final = (
    *("", "at a time", "photos/s", "p50 ms", "p95 ms", "p99 ms", "answers", "errors"),
    *("CPU ms a photo", "MiB"),
)


@dataclass(frozen=True)
class PhotoComparison:
    """The measurements, their photos, and the effect of decoding."""

    sets: Mapping[str, PhotoSet]
    outcome: Outcome
    decoding: Sequence[str]

    def rows(self, photos: str) -> list[BenchRow]:
        return [row for row in rows_of(self.outcome.windows) if row.load.inputs == photos]


def goals(photos: str, rows: Sequence[BenchRow]) -> list[Requirement]:
    """Return the goals for a set of photos whose contenders were all measured."""

    def at(level: int) -> tuple[BenchRow | None, list[BenchRow]]:
        by_arm = {row.load.arm: row for row in rows if row.load.level == level}
        return by_arm.get("ours"), [row for key, row in by_arm.items() if ARMS[key].role == "peers"]

    def percentile(which: int) -> Callable[[BenchWindow], float]:
        return lambda window: window.percentiles_ms[which]

    small, (ours, peers), (alone, peers_alone) = photos == "small", at(GOAL_LEVEL), at(1)
    p99 = f"{photos} photos: our p99 ÷ the lowest p99 of a peer"
    p50 = f"{photos} photos, one at a time: our p50 ÷ the lowest of a peer"
    return [
        *ratio_goal(f"{photos} photos: ours ÷ the best peer", ours, peers, 1.05 if small else 2.8),
        *ratio_goal(p99, ours, peers, 1.0, percentile(2), at_most=True),
        *(ratio_goal(p50, alone, peers_alone, 1.25, percentile(0), at_most=True) if small else []),
    ]


def draw(comparison: PhotoComparison) -> Drawing:
    """Draw every contender at the concurrency of the goals, the limit on top."""
    title = f"Photos per second, {GOAL_LEVEL} at a time (median; line: least to most; *: disturbed)"
    words, roles = ({key: getattr(arm, name) for key, arm in ARMS.items()} for name in ("words", "role"))
    groups = []
    for photos, photo_set in comparison.sets.items():
        rows = [row for row in comparison.rows(photos) if row.load.level in (0, GOAL_LEVEL)]
        drawn = chart(
            rows, str(photo_set), "photos per second", words.__getitem__, roles.__getitem__, _COLOURS
        )
        groups.append((str(photo_set), drawn))
    return stacked(title, groups)


def as_markdown(comparison: PhotoComparison) -> str:
    """Return the generated part of the page."""
    requirements = [goal for photos in comparison.sets for goal in goals(photos, comparison.rows(photos))]
    pinned = [line for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    named = ("fastapi", "uvicorn", "litserve", "bentoml")
    versions = [line for line in pinned if line.partition("==")[0].split("[")[0] in named]
    page = (
        "CPU is of all processes of a server, per photo, in milliseconds of one core; memory counts once "
        f"what processes share. Peers: {', '.join(versions)}.\n\n"
        + "".join(f"- {photo_set}\n" for photo_set in comparison.sets.values())
        + "".join(f"- left out: {words}: {why}\n" for words, why in comparison.outcome.left_out.items())
        + f"\n![Photos per second at {GOAL_LEVEL} at a time]({PICTURE})\n\n"
        + markdown(
            (f"goal, at {GOAL_LEVEL} at a time", *HEADINGS[1:]), (goal.as_row() for goal in requirements)
        )
    )
    for photos in comparison.sets:
        page += f"\n### {photos.capitalize()} photos\n\n" + markdown(
            _HEADINGS, map(_cells, comparison.rows(photos))
        )
    lines = [f"- {line}\n" for line in comparison.decoding]
    return page + "".join(["\nHow other decoding changes answers:\n\n", *lines] if lines else [])


def _cells(row: BenchRow) -> tuple[str, ...]:
    return (
        ARMS[row.load.arm].words + row.mark,
        str(row.load.level or "–"),
        median_and_range(row.per_s, ".0f" if row.median >= 50 else ".1f"),
        *(f"{value:.0f}" if value >= 20 else f"{value:.1f}" for value in row.percentiles_ms),
        str(sum(len(window.latencies_ms) for window in row.windows)),
        str(row.errors.total()),
        _sum(row.medians("cpu_ms"), 1),
        _sum(row.medians("memory_mib"), 0),
    )


def _sum(parts: dict[str, float], digits: int) -> str:
    if len(parts) < 2:
        return "".join(f"{value:.{digits}f}" for value in parts.values())
    listed = ", ".join(f"{name} {value:.{digits}f}" for name, value in parts.items())
    return f"{sum(parts.values()):.{digits}f}: {listed}"
