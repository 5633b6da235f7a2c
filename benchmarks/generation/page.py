"""The comparison as a part of docs/loop.md, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from generation.http_arms import FASTAPI, FORMS
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
)
from generation.without_triton import EAGER, PYTHON
from gourmet.reports.chart import Drawing
from gourmet.reports.table import markdown
from harness.report import HEADINGS, BenchRow, DocsPart, Requirement, chart, median_and_range, ratio_goal
from harness.windows import FIRST_PIECE_MS

PART: Final = DocsPart("make bench-generation", "loop.md")
PICTURE: Final = "generation.svg"
_MANY: Final = 8
_MORE: Final = 16
_BESIDE_LONG: Final = (JOINING, NOT_JOINING)
_COLOURS: Final = {"Triton": "#1b5e9b", "no server": "#9e9e9e", "another server": "#c98a1b"}
TABLE: Final = (
    *("", "at a time", "answers/s", "p50 ms", "p95 ms", "p99 ms", "requests", "inside Triton"),
    *("kB on the wire", "the network's own answers"),
)


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


def goals(rows: Sequence[BenchRow]) -> list[Requirement]:
    """Return the goals whose arms were all measured in every turn."""
    table = {(row.load.arm, row.load.level): row for row in rows}

    def ahead(words: str, begin: str, level: int, wanted: float) -> list[Requirement]:
        """Compare the loop in process with the best arm whose name begins with `begin`."""
        others = [row for row in rows if row.load.level == level and row.load.arm.startswith(begin)]
        return ratio_goal(
            f"{IN_PROCESS} ÷ {words}, c={level}", table.get((IN_PROCESS, level)), others, wanted
        )

    behind = [f"{FASTAPI}, {form}" for form in FORMS]
    joining, waiting = (table.get((arm, MIXED_LEVEL)) for arm in _BESIDE_LONG)
    tail = "p99 of short sentences beside long ones: joining ÷ not joining"
    return [
        *ahead(LOOP, LOOP, 1, 5.0),
        *ahead(LOOP, LOOP, _MANY, 10.0),
        *ahead(BLS, BLS, _MANY, 2.0),
        *ahead(f"{PYTHON}, best threads", PYTHON, _MANY, 0.85),
        *ahead(EAGER, EAGER, _MANY, 1.0),
        *(goal for arm in behind for goal in ahead(f"{arm}, best layout", arm, _MANY, 1.0)),
        *ahead(f"{behind[-1]}, best layout", behind[-1], _MORE, 1.3),
        *ahead(f"{behind[-1]}, best layout", behind[-1], 1, 0.8),
        *ratio_goal(
            f"four beams ÷ greedy, c={_MANY}",
            table.get((BEAMS, _MANY)),
            [table.get((IN_PROCESS, _MANY))],
            0.35,
        ),
        *ratio_goal(tail, joining, [waiting], 0.3, lambda window: window.percentiles_ms[2], at_most=True),
    ]


def as_markdown(rows: Sequence[BenchRow]) -> str:
    lines = []
    for row in rows:
        if (first_ms := row.figure(FIRST_PIECE_MS)) is not None:
            lines.append(f"- {row.load.arm}: first piece after {first_ms:.2f} ms\n")
        if (memory := row.figure(MEMORY_MIB)) is not None and row.load.level == _MANY:
            lines.append(f"- {row.load.arm}: its processes have {memory:.0f} MiB\n")
    return (
        f"![Sentences per second at {_MANY} at a time]({PICTURE})\n\n"
        f"{markdown(HEADINGS, (goal.as_row() for goal in goals(rows)))}\n"
        f"{markdown(TABLE, (cells(row) for row in rows if row.load.level == _MANY))}\n" + "".join(lines)
    )


def draw(rows: Sequence[BenchRow]) -> Drawing:
    """Draw all arms at the load of the goals."""
    shown = [row for row in rows if row.load.level == _MANY and row.load.arm not in _BESIDE_LONG]
    title = f"Sentences per second, {_MANY} at a time (median; line: least to most)"
    return chart(shown, title, "sentences per second", str, _kind, _COLOURS)


def _kind(arm: str) -> str:
    if FASTAPI.removeprefix("CTranslate2") in arm:
        return "another server"
    return "no server" if arm.startswith((PYTHON, EAGER)) else "Triton"


def _number(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value else "–"
