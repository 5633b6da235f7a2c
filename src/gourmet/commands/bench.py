"""`gourmet bench`: measure speed with checked answers; compare and list saved runs; run other programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from gourmet.commands import values
from gourmet.commands.bench_options import command_line, finish, measuring, table
from gourmet.commands.options import json_option
from gourmet.commands.progress import bar
from gourmet.commands.values import FILE, FOLDER, FOUND, FOUND_FILE, POSITIVE, model_of
from gourmet.errors import UsageError
from gourmet.measure import comparison, report, scenarios, sweep
from gourmet.measure import scenario as running
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import LoadSpec
from gourmet.measure.task import Addresses, MeasureOptions
from gourmet.runtime.files import shipped

PROGRAMS: Final = shipped("benchmarks")
# Another program, or another command, parses its arguments itself.
_PASSED_ON: Final = {"ignore_unknown_options": True, "help_option_names": []}


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
@click.option("--rate", type=values.levels, help="Requests per second, in place of --concurrency, like 50.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    help="Distribution of arrival times with --rate.",
)
@click.option("--batch", type=values.counts, default="1", help="Rows per request, like 1 or 1,4,16.")
@click.option(
    "--protocol", type=click.Choice(["http", "grpc"]), default="http", help="Protocol to ask Triton by."
)
@click.option("--shared-memory", is_flag=True, help="Pass the inputs in shared memory.")
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
    arrivals: Any,
    batch: tuple[int, ...],
    protocol: Any,
    shared_memory: bool,
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
    gourmet bench run food_classifier_onnx --concurrency 4 --batch 1,4 --protocol grpc --shared-memory
    gourmet bench run food_classifier --rate 20:100:20
    gourmet bench run food_classifier --concurrency 8 --through app

    Of a model that answers in pieces, the first piece and the time between pieces are reported as well.
    """
    if concurrency and rate:
        raise UsageError(
            "--concurrency keeps requests in flight and --rate sends them by the clock: give one"
        )
    loads = [
        LoadSpec(model, level, arrivals if rate else "closed", rows, protocol, shared_memory, through)
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
@click.argument("name")
@click.option("--turns", default=1, type=POSITIVE, help="Number of times to measure every config.")
@click.option("--model", help="Model of queue-delay, whose delay changes.  [default: food_classifier_onnx]")
@click.option("--rows", "count", default=32, type=click.IntRange(2), help="Number of inputs to send.")
@click.option("--data", type=FOUND, help="Folder of examples to send instead of generated ones.")
@click.option(
    "--resume", type=FOLDER, help="Keep the points of each config in this folder; skip points that it has."
)
@measuring
def scenario(
    name: str,
    turns: int,
    model: str | None,
    count: int,
    data: Path | None,
    resume: Path | None,
    target: Addresses,
    options: MeasureOptions,
    **output: Any,
) -> None:
    """Run the exercise NAME of a known lab on the running server, and test its claims here.

    \b
    food         one instance, client batches, dynamic batching, 2 and 4 instances, ONNX, ONNX scaled
    digits       instance counts, queue delays on a model that cannot batch and on one that can
    queue-delay  how long a request may wait for more requests
    foundation   what Triton adds to ONNX Runtime, and our model.py beside a lab's (on a server of its own)
    translator   a loop of words in the client, in BLS and in process (on a server of its own)

    Configs change through Triton's load API; what served before is put back at the end.
    """
    if name not in (known := scenarios.known()):
        raise UsageError(f"no scenario {name!r} found; there are {', '.join(sorted(known))}")
    chosen = scenarios.load(name, model)
    rows = DataSource(count, folder=data)
    with bar(chosen.title) as tick:
        result = running.run(
            chosen, target, options, rows, turns=turns, command=command_line(), resume=resume, on_step=tick
        )
    finish(result, **output)


@bench.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def foundation(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Compare the backend with raw ONNX Runtime, and model.py with a reference lab's.

    Run the scenario of that name with its usual options, to which others may be added. It takes about three
    minutes a turn. On a machine that is busy with something else, only the ratios are valid.
    """
    # A busy machine's windows may never agree; the spread over the turns says how much they differ.
    usual = ("--turns=3", "--rows=64", "--window=2", "--windows=3", "--steady=30")
    with scenario.make_context("scenario", ["foundation", *usual, *arguments], parent=ctx.parent) as context:
        scenario.invoke(context)


def _beside(name: str, words: str) -> None:
    """Add a verb that runs a program of benchmarks/, which only a checkout has."""

    @bench.command(name, help=words, context_settings=_PASSED_ON)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def run_program(ctx: click.Context, arguments: tuple[str, ...]) -> None:
        program = PROGRAMS / name
        if not program.is_dir():
            raise UsageError(f"no {program} found: run this in a checkout")
        ctx.exit(subprocess.run([sys.executable, "-P", str(program), *arguments], check=False).returncode)


_beside(
    "peers", "Compare with FastAPI, LitServe, BentoML and no server, on the same photos (benchmarks/peers)."
)
_beside("generation", "Measure a loop of words: its engines, and the alternatives (benchmarks/generation).")


@bench.command()
@click.argument("before", type=FOUND)
@click.argument("now", type=FOUND)
@click.option("--noise", default=5.0, help="Difference between equal runs that counts as noise, in percent.")
@click.option("--save", type=FILE, help="Write the comparison as an HTML page.")
@json_option
def compare(before: Path, now: Path, noise: float, save: Path | None, as_json: bool) -> None:
    """Compare two saved runs, folders or JSON files; fail if NOW is slower by more than --noise."""
    first, second = report.load(before), report.load(now)
    pairs = comparison.compare(first, second, noise / 100)
    headings, rows = report.pairs(pairs)
    if as_json:
        _print_json(("point", "before", "now", "throughput", "latency", "p95", "verdict"), rows)
    else:
        for words in comparison.differences(first, second):
            click.echo(f"differs in {words}")
        table(headings, rows)
    if save:
        save.write_text(report.comparison(first, second, pairs, noise / 100))
        click.echo(f"wrote {save}", err=True)
    comparison.refuse_slower(pairs, noise / 100)


@bench.command(name="list")
@json_option
@click.argument("folder", type=FOLDER, default=report.DEFAULT)
def list_(as_json: bool, folder: Path) -> None:
    """List the saved runs, the latest first."""
    headings = ("folder", "when", "title", "points")
    rows = [(str(path), run.when, run.title, str(len(run.points))) for path, run in report.saved(folder)]
    if as_json:
        _print_json(headings, rows)
    elif rows:
        table(headings, rows)
    else:
        click.echo(f"no saved runs under {folder}: make one with `gourmet bench run MODEL`")


def _print_json(keys: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=1))
