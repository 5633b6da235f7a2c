"""The table of the hard tier: rows that tests leave in a folder, shown at the end of a run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from gourmet.reports.machine import about

_HEAD: Final = (
    "| tried | times | requests | answered | refused, with a reason | wrong | lost | recovery |",
    "|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class TableRow:
    """A trial and its result; the counts by reason are unanswered requests."""

    tried: str
    requests: int
    answered: int
    seen: str
    survived: bool
    times: int = 1
    refused: Mapping[str, int] = field(default_factory=dict)
    wrong: Mapping[str, int] = field(default_factory=dict)
    silent: Mapping[str, int] = field(default_factory=dict)
    recovery_s: float | None = None  # None: there was nothing to recover from, or it did not
    planned: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M", time.gmtime()))
    commit: str = field(default_factory=lambda: about()["commit"])


Keep = Callable[[TableRow], None]


def save(row: TableRow, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', row.tried.lower()).strip('-')}.json"
    path.write_text(json.dumps(asdict(row), indent=1) + "\n")
    return path


def rows(folder: Path) -> list[TableRow]:
    """The rows in a folder, in the order in which they were tried."""
    table_rows = [TableRow(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(table_rows, key=lambda row: (row.at, row.tried))


def render(table_rows: Sequence[TableRow]) -> str:
    """The table, what users see, and what is planned for whatever was not survived, as Markdown."""
    lines = [*_HEAD, *map(_line, table_rows), "", "What a user sees of it:", ""]
    lines += [f"- **{row.tried}**: {row.seen}{_figures(row)}" for row in table_rows]
    if failed := [row for row in table_rows if not row.survived]:
        lines += ["", "Not survived:", ""]
        lines += [f"- **{row.tried}**: {row.planned or 'no plan yet'}" for row in failed]
    return "\n".join(lines)


def _line(row: TableRow) -> str:
    recovery = "–" if row.recovery_s is None else f"{row.recovery_s:.1f} s"
    name = row.tried if row.survived else f"**not survived:** {row.tried}"
    cells = [name, row.times, f"{row.requests:,}", f"{row.answered:,}", _counts(row.refused)]
    cells += [_counts(row.wrong), _counts(row.silent), recovery]
    return f"| {' | '.join(map(str, cells))} |"


def _counts(by_reason: Mapping[str, int]) -> str:
    counts = sorted(by_reason.items(), key=lambda x: -x[1])
    parts = [f"{count:,} × {reason}" for reason, count in counts if count]
    return ", ".join(parts) or "0"


def _figures(row: TableRow) -> str:
    return "".join(f"; {name} {value:g}" for name, value in row.figures.items())
