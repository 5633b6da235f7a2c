"""Write the comparison as a part of docs/loop.md, as a picture and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from generation.http_arms import FASTAPI, FORMS, WEB
from generation.sentences import AGREES
from generation.served import (
    BEAMS,
    BLS,
    IN_PROCESS,
    JOINING,
    LOOP,
    MEMORY_MIB,
    MIXED_LEVEL,
    NOT_JOINING,
    STREAMED,
)
from generation.without_triton import EAGER, ENCODER_MS, PYTHON, READING_MS, STEP_MS
from gourmet.measure.comparison import goals_by_turn
from gourmet.measure.results import HEADINGS, Requirement, median_and_range
from gourmet.reports.table import markdown
from harness.report import BenchRow, DocsPart, about_line, chart, ratio_goal, rows_of
from harness.run import QUIET_CORES
from harness.windows import FIRST_PIECE_MS, BenchWindow

PART: Final = DocsPart("gourmet bench generation compare", "loop.md", "Generation", "to here: compare")
PICTURE: Final = "generation.svg"
_MANY: Final = 8
_MORE: Final = 16
_BESIDE_LONG: Final = (JOINING, NOT_JOINING)
_COLOURS: Final = {"Triton": "#1b5e9b", "no server": "#9e9e9e", "another server": "#c98a1b"}
TABLE: Final = (
    *("", "at a time", "answers/s", "p50 ms", "p95 ms", "p99 ms", "requests", "inside Triton"),
    *("kB on the wire", "the network's own answers"),
)


# Rows by arm and level.
Table = Mapping[tuple[str, int], BenchRow]


@dataclass(frozen=True)
class SentenceComparison:
    """Everything that was measured."""

    windows: Sequence[BenchWindow]
    sentences: int
    pieces: float  # of an answer
    turns: int
    window_s: float

    @property
    def rows(self) -> list[BenchRow]:
        return rows_of(self.windows)

    @property
    def table(self) -> Table:
        return {(row.load.arm, row.load.level): row for row in self.rows}


def cells(row: BenchRow) -> tuple[str, ...]:
    kilobytes, agrees = row.figure("bytes"), row.figure(AGREES)
    return (
        row.load.arm + row.mark,
        str(row.load.level),
        median_and_range(row.per_s, ".1f"),
        *(f"{ms:.1f}" for ms in row.percentiles_ms),
        *(_number(row.figure(name), ".1f") for name in ("requests", "requests inside")),
        _number(kilobytes and kilobytes / 1000, ".1f"),
        _number(agrees and 100 * agrees, ".1f") + (" %" if agrees else ""),
    )


def goals(comparison: SentenceComparison) -> list[Requirement]:
    """Return the goals whose arms were all measured in every turn."""
    table, ahead = comparison.table, partial(ahead_of, comparison.table)
    behind = [f"{FASTAPI}, {form}" for form in FORMS]
    return [
        *ahead(LOOP, LOOP, 1, 5.0),
        *ahead(LOOP, LOOP, _MANY, 10.0),
        *ahead(BLS, BLS, _MANY, 2.0),
        *ahead(f"{PYTHON}, best threads", PYTHON, _MANY, 0.85),
        *ahead(EAGER, EAGER, _MANY, 1.0),
        *(goal for arm in behind for goal in ahead(f"{arm}, best layout", arm, _MANY, 1.0)),
        *ahead(f"{behind[-1]}, best layout", behind[-1], _MORE, 1.3),
        *ahead(f"{behind[-1]}, best layout", behind[-1], 1, 0.8),
        *ratio_goal(f"four beams ÷ greedy, c={_MANY}", table.get((BEAMS, _MANY)), greedy_of(table), 0.35),
        *first_piece(table, "first piece, less the encoder, in steps of a decoder", (ENCODER_MS,), 5.0),
        *first_piece(table, "the same by the web app's API", (ENCODER_MS,), 7.0, WEB),
        *tail(table, "p99 of short sentences beside long ones: joining ÷ not joining", _BESIDE_LONG, 0.3),
    ]


def greedy_of(table: Table) -> list[BenchRow]:
    row = table.get((IN_PROCESS, _MANY))
    return [row] if row else []


def ahead_of(table: Table, words: str, begin: str, level: int, wanted: float) -> list[Requirement]:
    """Return the goal of the loop in process against the best arm whose name begins with `begin`."""
    ours = table.get((IN_PROCESS, level))
    others = [row for (arm, at), row in table.items() if at == level and arm.startswith(begin)]
    return ratio_goal(f"{IN_PROCESS} ÷ {words}, c={level}", ours, others, wanted)


def first_piece(
    table: Table, words: str, less: Sequence[str], wanted: float, arm: str = STREAMED
) -> list[Requirement]:
    """Return the goal for the first piece's latency, in steps, without the parts `less` before them."""
    streamed = table.get((arm, 1))
    parts = [row for (arm, level), row in table.items() if arm.startswith(PYTHON) and level == 1]
    if not streamed or not parts:
        return []
    fastest = min(parts, key=lambda row: row.figure(STEP_MS) or 0.0)
    steps = tuple(
        (mine.figures[FIRST_PIECE_MS] - sum(part.figures[name] for name in less)) / part.figures[STEP_MS]
        for mine, part in zip(streamed.windows, fastest.windows, strict=True)
    )
    disturbed = streamed.disturbed or fastest.disturbed
    return [Requirement(words, steps, wanted, at_most=True, unit="steps", disturbed=disturbed)]


def tail(table: Table, words: str, arms: Sequence[str], wanted: float) -> list[Requirement]:
    """Return the goal for the p99 of the first of two arms against that of the second."""
    pair = [row for arm in arms if (row := table.get((arm, MIXED_LEVEL)))]
    if len(pair) < 2:
        return []
    p99s = [[window.percentiles_ms[-1] for window in row.windows] for row in pair]
    disturbed = any(row.disturbed for row in pair)
    return goals_by_turn(words, *p99s, wanted=wanted, at_most=True, disturbed=disturbed)


def as_markdown(comparison: SentenceComparison) -> str:
    rows = comparison.rows
    return (
        f"{about_line(PART.command)}.\n\n"
        f"{comparison.sentences} sentences, {comparison.pieces:.1f} pieces an answer; "
        f"{comparison.turns} turns of windows of {comparison.window_s:g} s, one arm after another. "
        "Figures are medians over the turns with the least and the most, percentiles are of all turns' "
        "answers together, and ratios are taken turn by turn. Every answer was checked. A window in which "
        f"others took more than {QUIET_CORES:g} cores was measured again, up to twice; a row with a * never "
        "had a quiet one in some turn.\n\n"
        f"![Sentences per second at {_MANY} at a time]({PICTURE})\n\n"
        f"{markdown(HEADINGS, (goal.as_row() for goal in goals(comparison)))}\n"
        f"{markdown(TABLE, (cells(row) for row in rows if row.load.level == _MANY))}\n"
        + "".join(
            f"- {row.load.arm}: reading it {_number(row.figure(READING_MS), '.2f')} ms, "
            f"the encoder {row.figure(ENCODER_MS):.2f} ms, a step {row.figure(STEP_MS):.2f} ms\n"
            for row in rows
            if row.load.level == 1 and row.figure(STEP_MS)
        )
        + "".join(
            f"- {row.load.arm}: first piece after {row.figure(FIRST_PIECE_MS):.2f} ms\n"
            for row in rows
            if row.figure(FIRST_PIECE_MS)
        )
        + "".join(
            f"- {row.load.arm}: its processes have {row.figure(MEMORY_MIB):.0f} MiB\n"
            for row in rows
            if row.load.level == _MANY and row.figure(MEMORY_MIB)
        )
    )


def write(comparison: SentenceComparison, folder: Path) -> tuple[Path, ...]:
    """Write the part of the page, and a picture of all arms at the load of the goals."""
    rows = [row for row in comparison.rows if row.load.level == _MANY and row.load.arm not in _BESIDE_LONG]
    title = f"Sentences per second, {_MANY} at a time (median; line: least to most)"
    drawn = chart(rows, title, "sentences per second", str, _kind, _COLOURS)
    return PART.write(folder, as_markdown(comparison), {PICTURE: drawn})


def _kind(arm: str) -> str:
    if FASTAPI.removeprefix("CTranslate2") in arm:
        return "another server"
    return "no server" if arm.startswith((PYTHON, EAGER)) else "Triton"


def _number(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value else "–"
