"""`gourmet bench`: measure speed with checked answers; compare saved runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gourmet.commands import values
from gourmet.commands.bench_options import command_line, finish, measuring, table
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND, FOUND_FILE, POSITIVE, model_of
from gourmet.errors import UsageError
from gourmet.measure import comparison, report, sweep
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import LoadSpec
from gourmet.measure.task import Addresses, MeasureOptions


@click.group()
def bench() -> None:
    """Measure speed against a stated baseline, and check every answer.

    A figure is reported only if every answer was right, Triton counted the rows that were sent, Little's law
    holds, the windows agree, no request failed and the client was not the limit.
    """


@bench.command()
@click.argument("model", metavar="SYSTEM-OR-MODEL", callback=model_of)
@click.option(
    "--concurrency", type=values.levels, help="Requests kept in flight, like 8, 1:8, 1:16:5 or 1,4,16."
)
@click.option(
    "--rate", type=values.levels, help="Requests per second at random (Poisson), in place of --concurrency."
)
@click.option("--batch", type=values.counts, default="1", help="Rows per request, like 1 or 1,4,16.")
@click.option(
    "--protocol", type=click.Choice(["http", "grpc"]), default="http", help="Protocol to ask Triton by."
)
@click.option(
    "--through",
    type=click.Choice(["triton", "app"]),
    default="triton",
    help="Ask Triton, or the web app's POST /predict.",
)
@click.option("--data", "folder", type=FOUND, help="Folder of examples, or an .npz by input.")
@click.option("--rows", "count", default=32, type=POSITIVE, help="Number of inputs to send.")
@click.option("--seed", default=5, help="Seed of generated inputs.")
@click.option(
    "--reference", type=FOUND_FILE, help="Compare with this ONNX file's answers.  [default: rows asked alone]"
)
@measuring
def run(
    model: str,
    concurrency: tuple[float, ...] | None,
    rate: tuple[float, ...] | None,
    batch: tuple[int, ...],
    protocol: Any,
    through: Any,
    target: Addresses,
    options: MeasureOptions,
    save: Path | None,
    as_json: bool,
    **data: Any,
) -> None:
    """Measure the served MODEL under one load or a range of them.

    \b
    gourmet bench run food_classifier --concurrency 1:8
    gourmet bench run food_classifier_onnx --concurrency 4 --batch 1,4 --protocol grpc
    gourmet bench run food_classifier --rate 20:100:20
    gourmet bench run food_classifier --concurrency 8 --through app

    Of a model that answers in pieces, the first piece and the time between pieces are reported as well.
    """
    if concurrency and rate:
        raise UsageError(
            "--concurrency keeps requests in flight and --rate sends them by the clock: give one"
        )
    loads = [
        LoadSpec(model, level, "poisson" if rate else "closed", rows, protocol, through)
        for rows in batch
        for level in rate or concurrency or (1,)
    ]
    with bar(f"bench {model}") as tick:
        tick(0.0, "asking every row alone")
        workload = sweep.prepare(model, target, DataSource(**data), through=through)
        points, refused = sweep.run(workload, loads, target, options, on_step=tick)
    span = str(loads[0]) if len(loads) == 1 else f"{loads[0]} to {loads[-1]}"
    title = f"{model}: {span}"
    finish(sweep.bench(title, command_line(), workload.rows.about, points, refused), save, as_json)


@bench.command()
@click.argument("before", type=FOUND)
@click.argument("now", type=FOUND)
def compare(before: Path, now: Path) -> None:
    """Compare two saved runs, folders or JSON files; fail if NOW is slower by more than 5 %."""
    first, second = report.load(before), report.load(now)
    pairs = comparison.compare(first, second)
    for words in comparison.differences(first, second):
        click.echo(f"differs in {words}")
    table(*report.pairs(pairs))
    comparison.refuse_slower(pairs)
