"""Format windows of all turns as rows and goals, and write them into a part of docs/."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from gourmet.measure.comparison import goals_by_turn
from gourmet.measure.results import Requirement
from gourmet.reports import machine
from gourmet.reports.chart import Bar, Drawing, bars
from gourmet.reports.table import write_section
from harness.run import QUIET_CORES
from harness.windows import BenchLoad, BenchWindow, percentiles


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
    what: str, ours: BenchRow | None, others: Sequence[BenchRow], wanted: float
) -> list[Requirement]:
    """Return the goal of ours against the best other, if all were measured; a disturbed one is not judged."""
    if not ours:
        return []
    disturbed = any(row.disturbed for row in [ours, *others])
    return goals_by_turn(what, ours.per_s, *(row.per_s for row in others), wanted=wanted, disturbed=disturbed)


def window_data(window: BenchWindow) -> dict[str, Any]:
    """Return a window's data without the single latencies."""
    data = asdict(window) | {"answers": len(window.latencies_ms), "per_s": window.per_s}
    del data["latencies_ms"]
    return data | dict(zip(("p50_ms", "p95_ms", "p99_ms"), window.percentiles_ms, strict=True))


def goal_data(goal: Requirement) -> dict[str, Any]:
    return {**asdict(goal), "median": goal.median, "met": goal.met}


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
    """The part of a docs/ page that a command writes, with the files beside the page."""

    command: str
    page: str
    heading: str
    end: str

    def write(self, folder: Path, words: str, files: Mapping[str, str] | None = None) -> tuple[Path, ...]:
        begin = f"<!-- from here on written by `{self.command}` -->"
        write_section(folder / self.page, begin, f"<!-- {self.end} -->", words, self.heading)
        for name, text in (files or {}).items():
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
        return folder / self.page, *(folder / name for name in files or {})

    def as_json(self, data: Mapping[str, Any]) -> str:
        """Return `data` with the command, the date and the machine."""
        return json.dumps({"command": self.command, **about(), **data}, indent=1)


def about() -> dict[str, Any]:
    return {"when": date.today().isoformat(), "machine": machine.about()}


def about_line(command: str) -> str:
    """Return the first line of a part: the command, the date and the machine."""
    machine_line = "; ".join(f"{name} {value}" for name, value in machine.about().items())
    return f"`{command}`, {date.today().isoformat()}: {machine_line}"
