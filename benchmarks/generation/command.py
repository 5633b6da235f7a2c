"""`python -P benchmarks/generation`: engines of the loop, and what a user would take instead of it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import click

from gourmet.commands.bench_options import table
from gourmet.commands.progress import bar
from gourmet.commands.values import FOLDER, FOUND, FOUND_FILE, FOUND_FOLDER, POSITIVE
from gourmet.measure.results import HEADINGS
from gourmet.measure.task import MeasureOptions
from gourmet.reports import machine
from gourmet.tasks.generation.packages import needed

_write = click.option(
    "--write",
    type=FOUND_FOLDER,
    help="Folder with generation.md, whose part of this command is rewritten, such as docs.",
)


_data = click.option(
    "--data", type=FOUND, help="Sentences with a test part.  [default: those the weights were trained on]"
)


@click.group()
def generation() -> None:
    """The translator's loop: which engine turns it fastest, and how it stands beside what others do."""


@generation.command()
@click.option("--weights", type=FOUND_FILE, default=Path("runs/translator/best.safetensors"))
@_data
@click.option("--limit", default=500, type=POSITIVE, help="How many sentences.", show_default=True)
@_write
def engines(weights: Path, data: Path | None, limit: int, write: Path | None) -> None:
    """ONNX Runtime, OpenVINO and CTranslate2, in fp32 and int8, on one thread and on all.

    Each translates the same sentences greedily, alone and sixteen at a time; its words are held against
    those of transformers' generate, which has to be all of them in fp32, and 99 % in int8.
    """
    with needed("engines.txt"):
        from generation import engine_report
        from generation.engines import measure
    from gourmet.training.run import data_of

    with bar("engines") as tick:
        run = measure(weights, data or data_of(weights), limit, tick)
    table(engine_report.HEADINGS, engine_report.rows(run))
    click.echo(engine_report.verdict(run))
    if write:
        click.echo(f"wrote {engine_report.write(run, machine.about(), write, date.today().isoformat())}")


@generation.command()
@click.option("--weights", type=FOUND_FILE, default=Path("runs/translator/best.safetensors"))
@_data
@click.option("--sentences", default=200, type=POSITIVE, help="At most.", show_default=True)
@click.option("--turns", default=3, type=POSITIVE, help="How often all is run.", show_default=True)
@click.option("--window", "window_s", default=4.0, show_default=True, type=click.FloatRange(0.2, 60))
@click.option("--warm-up", "warm_up_s", default=1.0, show_default=True, type=click.FloatRange(0.1, 60))
@click.option(
    "--out",
    type=FOLDER,
    default=Path("runs/generation"),
    show_default=True,
    help="What was measured: a run that was stopped goes on from there.",
)
@_write
def compare(
    weights: Path,
    data: Path | None,
    sentences: int,
    turns: int,
    window_s: float,
    warm_up_s: float,
    out: Path,
    write: Path | None,
) -> None:
    """The same sentences looped by the client, by BLS and in process, and by what a user would take instead.

    Starts and stops everything itself on free ports, one after another, with the models of triton/models,
    which have to be of --weights. Every answer is checked. All in its default takes about ten minutes.
    """
    with needed("engines.txt"):
        from generation import compare_report
        from generation.compare import Plan, measure
    from gourmet.training.run import data_of

    effort = MeasureOptions(window_s=window_s, windows=1, warm_up_s=warm_up_s)
    plan = Plan(weights, data or data_of(weights), sentences, turns, effort, out)
    with bar("compare") as tick:
        side = measure(plan, tick)
    table(compare_report.TABLE, [row.cells() for row in compare_report.rows(side)])
    table(HEADINGS, [goal.as_row() for goal in compare_report.goals(side)])
    if write:
        for path in compare_report.write(side, machine.about(), write, date.today().isoformat()):
            click.echo(f"wrote {path}")
