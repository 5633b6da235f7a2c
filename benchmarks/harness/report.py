"""Format windows of all turns as rows and goals, and write them into a part of docs/."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from gourmet.reports import machine
from gourmet.reports.chart import Bar, Drawing, bars
from gourmet.reports.table import write_section
from harness.run import QUIET_CORES
from harness.windows import BenchLoad, BenchWindow, percentiles

HEADINGS: Final = ("goal", "measured", "wanted", "")  # over the goals


@dataclass(frozen=True)
class Requirement:
    """A figure per turn, and what its median should reach."""

    what: str
    per_turn: tuple[float, ...]
    wanted: float
    at_most: bool = False
    unit: str = "×"
    # Other processes took so much of the machine that it is not to be judged.
    disturbed: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.per_turn)

    @property
    def met(self) -> bool | None:  # None where some turns reach it and others do not
        reached = {
            figure <= self.wanted if self.at_most else figure >= self.wanted for figure in self.per_turn
        }
        return reached.pop() if len(reached) == 1 else None

    @property
    def verdict(self) -> str:
        if self.disturbed:
            return "not judged: disturbed"
        return {True: "met", False: "not met", None: "not decided"}[self.met]

    def as_row(self) -> tuple[str, ...]:
        """Return the cells below the HEADINGS."""
        unit = self.unit if self.unit == "×" else f" {self.unit}"
        wanted = f"at {'most' if self.at_most else 'least'} {self.wanted:g}{unit}"
        return self.what, f"{median_and_range(self.per_turn, '.2f')}{unit}", wanted, self.verdict


def median_and_range(values: Sequence[float], form: str) -> str:
    """Format the median, with minimum and maximum if there are several figures."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


@dataclass(frozen=True)
class BenchRow:
    """An arm under a load, over all turns."""

    load: BenchLoad
    windows: Sequence[BenchWindow]

    @property
    def per_s(self) -> list[float]:
        return [window.per_s for window in self.windows]

    @property
    def median(self) -> float:
        return statistics.median(self.per_s)

    @property
    def disturbed(self) -> bool:
        return max(window.foreign_cores for window in self.windows) > QUIET_CORES

    @property
    def mark(self) -> str:
        return " *" if self.disturbed else ""

    @property
    def percentiles_ms(self) -> tuple[float, float, float]:
        """p50, p95 and p99 of all turns' answers together."""
        return percentiles([took_ms for window in self.windows for took_ms in window.latencies_ms])

    @property
    def errors(self) -> Counter[str]:
        return sum((Counter(window.errors) for window in self.windows), Counter())

    def figure(self, name: str) -> float | None:
        """Return the median over the turns that have the figure."""
        return self.medians("figures").get(name)

    def medians(self, name: str) -> dict[str, float]:
        """Return the medians of a mapping of figures, such as `cpu_ms` and `memory_mib`."""
        values: dict[str, list[float]] = {}
        for window in self.windows:
            for key, value in getattr(window, name).items():
                values.setdefault(key, []).append(value)
        return {key: statistics.median(figures) for key, figures in values.items()}


def rows_of(windows: Iterable[BenchWindow]) -> list[BenchRow]:
    """Return a row for each load, in the order of the first measurement."""
    groups: dict[BenchLoad, list[BenchWindow]] = {}
    for window in windows:
        groups.setdefault(window.load, []).append(window)
    return [BenchRow(load, same) for load, same in groups.items()]


def ratio_goal(
    what: str,
    ours: BenchRow | None,
    others: Sequence[BenchRow | None],
    wanted: float,
    figure: Callable[[BenchWindow], float] = lambda window: window.per_s,
    at_most: bool = False,
) -> list[Requirement]:
    """Return the goal for our figure ÷ the best of the others', or none if a row was not measured.

    Ratios are taken turn by turn, so that a machine that slows down in between favours neither.
    """
    rows = [ours, *others]
    measured = [row for row in rows if row]
    if len(rows) < 2 or len(measured) < len(rows) or len({len(row.windows) for row in measured}) > 1:
        return []
    turns = zip(*([figure(window) for window in row.windows] for row in measured), strict=True)
    ratios = tuple(mine / (min if at_most else max)(theirs) for mine, *theirs in turns)
    return [Requirement(what, ratios, wanted, at_most, disturbed=any(row.disturbed for row in measured))]


def chart(
    rows: Sequence[BenchRow],
    title: str,
    unit: str,
    words: Callable[[str], str],
    kind: Callable[[str], str],
    colours: Mapping[str, str],
) -> Drawing:
    """Draw bars of medians, with whiskers from minimum to maximum."""
    shown = [
        Bar(
            words(row.load.arm) + row.mark,
            row.median,
            min(row.per_s),
            max(row.per_s),
            colours[kind(row.load.arm)],
            says=f"{row.median:.{0 if row.median >= 50 else 1}f}",
        )
        for row in rows
    ]
    return bars(shown, title, unit, colours=colours)


@dataclass(frozen=True)
class DocsPart:
    """The part of a docs/ page that a command writes, with the pictures beside the page."""

    command: str
    page: str

    def about(self, turns: int, window_s: float) -> str:
        """Return the first lines of a part: the command, the date, the machine, and what figures are."""
        where = "; ".join(f"{name} {value}" for name, value in machine.about().items())
        return (
            f"`{self.command}`, {date.today().isoformat()}: {where}.\n\n"
            f"{turns} turns of windows of {window_s:g} s, one arm after another. Figures are medians over "
            "the turns with the least and the most, percentiles are of all turns' answers together, and "
            "ratios are taken turn by turn. Every answer was checked. A window in which others took more "
            f"than {QUIET_CORES:g} cores was measured again, up to twice; a row with a * never had a quiet "
            "one in some turn.\n\n"
        )

    def write(self, folder: Path, words: str, pictures: Mapping[str, Drawing] | None = None) -> None:
        begin, end = (f"<!-- {at} `{self.command}` -->" for at in ("from here on written by", "to here:"))
        write_section(folder / self.page, begin, end, words, self.page)
        for name, drawing in (pictures or {}).items():
            (folder / name).write_text(f"{drawing}\n", encoding="utf-8")
