"""How the verbs of `gourmet bench` show and keep what they measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from gourmet.bench.results import Bench


def finish(result: Bench, save: Path | None, as_json: bool) -> None:
    """Save and show a run; fail where any of it was refused."""
    from gourmet.bench import results, saving, tables, trust

    reasons = "; ".join(f"{each.name}: {each.reason}" for each in result.refused)
    if not result.points:
        raise trust.Untrusted(reasons)
    folder = saving.save(result, save)
    if as_json:
        click.echo(results.as_json(result), nl=False)
    else:
        table(tables.HEADINGS, [tables.row(point) for point in result.points])
        for finding in result.findings:
            mark = {True: "✓", False: "✗", None: "·"}[finding.seen]
            click.echo(f"{mark} {finding.says}")
        click.echo(f"saved in {folder}: open {folder}/index.html")
    if result.refused:
        raise trust.Untrusted(f"measured and not reported: {reasons}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows, the first column to the left and figures to the right."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    wide = sys.stdout.isatty()
    Console(width=None if wide else 200).print(drawn)


def command_line() -> str:
    """What was typed, for the reader of a report who wants to do it again."""
    words = sys.argv[1:] if Path(sys.argv[0]).name == "gourmet" else []
    return shlex.join(["gourmet", *words])
