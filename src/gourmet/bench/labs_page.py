"""What a scenario showed, as its part of docs/labs.md with a picture beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gourmet.bench import charts, tables, written
from gourmet.bench.results import Bench

PAGE: Final = "labs.md"
_MARKS: Final = {True: "✓", False: "✗", None: "·"}


def write(bench: Bench, name: str, folder: Path) -> tuple[Path, Path]:
    """Write the page's part of the scenario `name`, and its picture."""
    page, picture = folder / PAGE, folder / f"labs-{name}.svg"
    begin = f"<!-- from here on written by `gourmet bench scenario {name}` -->"
    end = f"<!-- to here: {name} -->"
    written.put(page, begin, end, as_markdown(bench, picture.name), "The labs on this machine")
    picture.write_text(charts.throughput(bench.points))
    return page, picture


def as_markdown(bench: Bench, picture: str) -> str:
    """The findings, the picture and the table."""
    machine = "; ".join(f"{key} {value}" for key, value in bench.machine.items())
    parts = [
        f"`{bench.command}`, {bench.when[:10]}: {machine}.\n",
        *(f"- {_MARKS[finding.seen]} {finding.says}" for finding in bench.findings),
        *(f"- measured and not reported: {refused.name}: {refused.reason}" for refused in bench.refused),
        f"\n![Throughput of every point]({picture})\n",
        _row(tables.HEADINGS),
        _row(("---", *("---:" for _ in tables.HEADINGS[1:]))),
        *(_row(tables.row(point)) for point in bench.points),
    ]
    return "\n".join(parts) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
