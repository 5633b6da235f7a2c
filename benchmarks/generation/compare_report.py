"""The comparison as a part of docs/generation.md, as a picture and as data."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from generation.compare import AGREES, EAGER, FASTAPI, FORMS, PYTHON, Side
from generation.served import BLS, IN_PROCESS, JOINING, LOOP, MIXED_LEVEL, NOT_JOINING, STREAMED
from generation.windows import SentenceWindow
from gourmet.measure.comparison import goals_by_turn
from gourmet.measure.results import HEADINGS, Requirement, median_and_range
from gourmet.reports.chart import Bar, Drawing, bars
from gourmet.reports.table import markdown, write_section

PAGE, PICTURE, DATA = "generation.md", "generation.svg", "generation.json"
COMMAND: Final = "gourmet bench generation compare"
_BEGIN: Final = f"<!-- from here on written by `{COMMAND}` -->"
_END: Final = "<!-- to here: compare -->"
# A window in which others took more of the machine than this is marked.
QUIET_CORES: Final = 0.1
_MANY: Final = 8
_COLOURS: Final = {"Triton": "#1b5e9b", "no server": "#9e9e9e", "another server": "#c98a1b"}
TABLE: Final = (
    *("", "at a time", "sentences/s", "p50 ms", "p95 ms", "p99 ms", "requests", "inside Triton"),
    *("kB on the wire", "the network's own answers"),
)


@dataclass(frozen=True)
class ArmRow:
    """An arm under a load, over all turns."""

    arm: str
    level: int
    windows: Sequence[SentenceWindow]

    @property
    def per_s(self) -> list[float]:
        return [window.per_s for window in self.windows]

    @property
    def disturbed(self) -> bool:
        return max(window.foreign_cores for window in self.windows) > QUIET_CORES

    def median(self, figure: str) -> float | None:
        told = [window.figures[figure] for window in self.windows if figure in window.figures]
        return statistics.median(told) if told else None

    def cells(self) -> tuple[str, ...]:
        p50, p95, p99 = (
            statistics.median(getattr(window, name) for window in self.windows)
            for name in ("p50_ms", "p95_ms", "p99_ms")
        )
        kilobytes, agrees = self.median("bytes"), self.median(AGREES)
        return (
            self.arm + (" *" if self.disturbed else ""),
            str(self.level),
            median_and_range(self.per_s, ".1f"),
            *(f"{ms:.1f}" for ms in (p50, p95, p99)),
            *(_number(self.median(name), ".1f") for name in ("requests", "requests inside")),
            _number(kilobytes and kilobytes / 1000, ".1f"),
            _number(agrees and 100 * agrees, ".1f") + (" %" if agrees else ""),
        )


def rows(side: Side) -> list[ArmRow]:
    groups: dict[tuple[str, int], list[SentenceWindow]] = {}
    for window in sorted(side.windows, key=lambda window: window.key.turn):
        groups.setdefault((window.key.arm, window.key.level), []).append(window)
    return [ArmRow(arm, level, windows) for (arm, level), windows in groups.items()]


def goals(side: Side) -> list[Requirement]:
    """As far as everybody who is needed for one took part in every turn."""
    table = {(row.arm, row.level): row for row in rows(side)}

    def ahead(words: str, begin: str, level: int, wanted: float) -> list[Requirement]:
        mine = table.get((IN_PROCESS.name, level))
        theirs = [row for (arm, at), row in table.items() if at == level and arm.startswith(begin)]
        if not mine:
            return []
        what = f"{IN_PROCESS.name} ÷ {words}, c={level}"
        rates = (row.per_s for row in theirs)
        return goals_by_turn(
            what, mine.per_s, *rates, wanted=wanted, disturbed=any(row.disturbed for row in [mine, *theirs])
        )

    behind = [f"{FASTAPI}, {form}" for form in FORMS]
    return [
        *ahead(LOOP.name, LOOP.name, 1, 5.0),
        *ahead(LOOP.name, LOOP.name, _MANY, 10.0),
        *ahead(BLS.name, BLS.name, _MANY, 2.0),
        *ahead(f"{PYTHON}, best threads", PYTHON, _MANY, 0.85),
        *ahead(EAGER, EAGER, _MANY, 1.0),
        *(goal for arm in behind for goal in ahead(f"{arm}, best layout", arm, _MANY, 1.0)),
        *_first_piece(table),
        *_beside_long(table),
    ]


def _first_piece(table: Mapping[tuple[str, int], ArmRow]) -> list[Requirement]:
    """In steps, less the encoder."""
    streamed = table.get((STREAMED.name, 1))
    parts = [row for (arm, level), row in table.items() if arm.startswith(PYTHON) and level == 1]
    if not streamed or not parts:
        return []
    fastest = min(parts, key=lambda row: row.median("step ms") or 0.0)
    steps = tuple(
        (mine.figures["first piece ms"] - part.figures["encoder ms"]) / part.figures["step ms"]
        for mine, part in zip(streamed.windows, fastest.windows, strict=True)
    )
    words = "first piece, less the encoder, in steps of a decoder"
    disturbed = streamed.disturbed or fastest.disturbed
    return [Requirement(words, steps, 2.5, at_most=True, unit="steps", disturbed=disturbed)]


def _beside_long(table: Mapping[tuple[str, int], ArmRow]) -> list[Requirement]:
    pair = [row for name, _ in (JOINING, NOT_JOINING) if (row := table.get((name, MIXED_LEVEL)))]
    if len(pair) < 2:
        return []
    p99s = [[window.p99_ms for window in row.windows] for row in pair]
    words = "p99 of short sentences beside long ones: joining ÷ not joining"
    disturbed = any(row.disturbed for row in pair)
    return goals_by_turn(words, *p99s, wanted=0.5, at_most=True, disturbed=disturbed)


def as_markdown(side: Side, machine: Mapping[str, str], when: str) -> str:
    found = rows(side)
    plan = side.plan
    about = "; ".join(f"{name} {value}" for name, value in machine.items())
    told = [goal.as_row() for goal in goals(side)]
    parts = [row for row in found if row.median("step ms")]
    return (
        f"`{COMMAND}`, {when}: {about}.\n\n"
        f"{side.sentences} sentences, {side.pieces:.1f} pieces an answer; {plan.turns} turns of windows of "
        f"{plan.effort.measure_s:g} s, one arm after another. Figures are medians over the turns with the "
        "least and the most; ratios are taken turn by turn. Every answer was checked. A row with a * was "
        f"disturbed: others took more than {QUIET_CORES:g} cores in some turn.\n\n"
        f"![Sentences per second at {_MANY} at a time]({PICTURE})\n\n"
        f"{markdown(HEADINGS, told)}\n{markdown(TABLE, (row.cells() for row in found))}\n"
        + "".join(
            f"- {row.arm}: the encoder {row.median('encoder ms'):.2f} ms, "
            f"a step {row.median('step ms'):.2f} ms\n"
            for row in parts
            if row.level == 1
        )
        + "".join(
            f"- {row.arm}: first piece after {row.median('first piece ms'):.2f} ms\n"
            for row in found
            if row.median("first piece ms")
        )
    )


def as_data(side: Side, machine: Mapping[str, str], when: str) -> dict[str, Any]:
    return {
        "command": COMMAND,
        "when": when,
        "machine": dict(machine),
        "sentences": side.sentences,
        "goals": [{**asdict(goal), "median": goal.median, "met": goal.met} for goal in goals(side)],
        "windows": [asdict(window) for window in side.windows],
    }


def draw(side: Side) -> Drawing:
    """Everybody at the load of the goals; whiskers are least and most."""
    shown = [
        Bar(
            row.arm + (" *" if row.disturbed else ""),
            statistics.median(row.per_s),
            min(row.per_s),
            max(row.per_s),
            _COLOURS[_kind(row.arm)],
            says=f"{statistics.median(row.per_s):.0f}",
        )
        for row in rows(side)
        if row.level == _MANY and row.arm not in (JOINING[0], NOT_JOINING[0])
    ]
    title = f"Sentences per second, {_MANY} at a time (median; line: least to most)"
    return bars(shown, title, "sentences per second", colours=_COLOURS)


def write(side: Side, machine: Mapping[str, str], folder: Path, when: str) -> tuple[Path, ...]:
    page = folder / PAGE
    write_section(page, _BEGIN, _END, as_markdown(side, machine, when), "Generation")
    (folder / PICTURE).write_text(draw(side) + "\n", encoding="utf-8")
    data = json.dumps(as_data(side, machine, when), indent=1) + "\n"
    (folder / DATA).write_text(data, encoding="utf-8")
    return page, folder / PICTURE, folder / DATA


def _kind(arm: str) -> str:
    if arm.startswith(FASTAPI):
        return "another server"
    return "no server" if arm.startswith((PYTHON, EAGER)) else "Triton"


def _number(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value else "–"
