"""How the verbs of `gourmet bench` show and keep what they measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gourmet.measure import results, storage, tables, validity


def finish(result: results.Bench, save: Path | None, as_json: bool) -> None:
    """Save and show a run; fail where any of it was refused."""
    reasons = "; ".join(map(str, result.refused))
    if not result.points:
        raise validity.Untrusted(reasons)
    folder = storage.save(result, save)
    if as_json:
        click.echo(results.as_json(result), nl=False)
    else:
        table(*tables.figures(result.points))
        if any(point.stream for point in result.points):
            table(*tables.streamed(result.points))
        for finding in result.findings:
            click.echo(f"{finding.mark} {finding.says}")
        if result.goals:
            table(*tables.goals(result))
        click.echo(f"saved in {folder}: open {folder}/index.html")
    if result.refused:
        raise validity.Untrusted(reasons)


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
