"""`gourmet bench foundation`: what serving costs, and what it gains over a lab's first model."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@click.command()
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1), help="How often all is run.")
@click.option(
    "--window", "window_ms", default=2000, show_default=True, type=click.IntRange(500), metavar="MS"
)
@click.option(
    "--write",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder for measurements.md and measurements.json, such as docs.",
)
def foundation(turns: int, window_ms: int, write: Path | None) -> None:
    """The backend against raw ONNX Runtime, and model.py against a reference lab's.

    Starts a Triton of its own on free ports. Takes about two minutes a turn; on a machine that does
    something else at the same time the ratios still mean something, the rest does not.
    """
    from gourmet.bench import foundation as scenario
    from gourmet.bench import foundation_report, machine

    columns = (TextColumn("{task.description:56}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting Triton", total=scenario.steps(turns))

        def on_step(what: str) -> None:
            progress.update(task, description=what)
            progress.advance(task)

        results = scenario.measure(turns, window_ms, on_step=on_step)
    about, today = machine.about(), date.today().isoformat()
    Console().print(Markdown(foundation_report.as_markdown(results, about, today)))
    if write:
        for path in foundation_report.write(results, about, write, today):
            click.echo(f"wrote {path}")
