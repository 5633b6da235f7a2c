"""What a scenario showed, as its part of docs/labs.md with a picture beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gourmet.measure import charts, tables
from gourmet.measure.results import Bench
from gourmet.reports.table import markdown, write_section

PAGE: Final = "labs.md"


def write(bench: Bench, name: str, folder: Path, page_name: str = PAGE) -> tuple[Path, Path]:
    """Write the page's part of the scenario `name`, and its picture."""
    page, picture = folder / page_name, folder / f"labs-{name}.svg"
    begin = f"<!-- from here on written by `gourmet bench scenario {name}` -->"
    end = f"<!-- to here: {name} -->"
    write_section(page, begin, end, as_markdown(bench, picture.name), "The labs on this machine")
    picture.write_text(charts.throughput(bench.points))
    return page, picture


def as_markdown(bench: Bench, picture: str) -> str:
    machine = "; ".join(f"{key} {value}" for key, value in bench.machine.items())
    parts = [
        f"`{bench.command}`, {bench.when[:10]}: {machine}.\n",
        f"{bench.about}\n",
        *([markdown(*tables.goals(bench))] if bench.goals else []),
        *(f"- {finding.mark} {finding.says}" for finding in bench.findings),
        *(f"- {refused}" for refused in bench.refused),
        f"\n![Throughput of every point]({picture})\n",
        markdown(*tables.figures(bench.points)),
    ]
    return "\n".join(parts)
