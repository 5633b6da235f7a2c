"""`gourmet bench`: measure speed with checked answers, and compare saved runs; options of other verbs too."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gourmet.bench import comparison, report, results, sweep, validity
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import LoadSpec
from gourmet.bench.workload import Addresses, MeasureOptions, prepare
from gourmet.commands import values
from gourmet.commands.options import json_option, url_option
from gourmet.commands.progress import bar
from gourmet.commands.values import FOLDER, FOUND, FOUND_FILE, POSITIVE, model_of
from gourmet.errors import UsageError, echo, printable

Command = TypeVar("Command", bound=Callable[..., Any])


def _share(_ctx: click.Context, _param: click.Parameter, percent: float) -> float:
    return percent / 100


def measuring(command: Command) -> Command:
    """Add the options of a measurement: the server, the windows, the limits, the folder and the output.

    The command gets a `target`, `options`, `save` and `as_json`.
    """

    @url_option()
    @click.option(
        "--grpc-url", help="Triton's gRPC address.  [default: the running stack's, or port 8001 of --url's]"
    )
    @click.option(
        "--app-url", help="Web app's address.  [default: the running stack's, or port 5000 of --url's]"
    )
    @click.option("--window", "window_s", default=1.0, help="Length of a window in seconds.")
    @click.option("--windows", default=5, type=click.IntRange(2), help="Number of windows of a measurement.")
    @click.option("--warm-up", "warm_up_s", default=1.0, help="Seconds of load before the first window.")
    @click.option("--attempts", default=3, type=POSITIVE, help="Attempts when a measurement is disturbed.")
    @click.option(
        "--steady",
        "steadiness",
        default=10.0,
        callback=_share,
        help="Allowed spread of the windows, in percent.",
    )
    @click.option(
        "--allow-errors",
        "errors_allowed",
        default=0.0,
        callback=_share,
        help="Allowed share of failed requests, in percent.",
    )
    @click.option("--save", type=FOLDER, help="Folder to save the run in.  [default: a new one under runs]")
    @json_option
    @functools.wraps(command)
    def measured(*args: Any, url: str, grpc_url: str | None, app_url: str | None, **values: Any) -> Any:
        target = Addresses.of(url, grpc_url or "", app_url or "")
        names = [field.name for field in fields(MeasureOptions) if field.name in values]
        options = MeasureOptions(**{name: values.pop(name) for name in names})
        return command(*args, target=target, options=options, **values)

    return measured  # type: ignore[return-value]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a table; the first column is aligned left, figures right."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for column, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if column == 0 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))  # not as rich's markup
    Console(width=None if sys.stdout.isatty() else 200).print(drawn)


def command_line() -> str:
    """Return the command that was typed, so that the reader of a report can repeat it."""
    words = sys.argv[1:] if Path(sys.argv[0]).name == "gourmet" else []
    return shlex.join(["gourmet", *words])


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
        workload = prepare(model, target, DataSource(**data), through=through)
        points, refused = sweep.run_sweep(workload, loads, target, options, on_step=tick)
    span = str(loads[0]) if len(loads) == 1 else f"{loads[0]} to {loads[-1]}"
    title = f"{model}: {span}"
    result = sweep.bench(title, command_line(), workload.rows.about, points, refused)
    reasons = "; ".join(map(str, refused))
    if not points:
        raise validity.Untrusted(reasons)
    folder = report.save(result, save)
    if as_json:
        echo(results.as_json(result), nl=False)
    else:
        table(*report.figures(points))
        if any(point.stream for point in points):
            table(*report.streamed(points))
        echo(f"saved in {folder}: {results.FILE}, bench.csv, {report.CHART}")
    if refused:
        raise validity.Untrusted(reasons)


@bench.command()
@click.argument("before", type=FOUND)
@click.argument("now", type=FOUND)
def compare(before: Path, now: Path) -> None:
    """Compare two saved runs, folders or JSON files; fail if NOW is slower by more than 5 %."""
    first, second = results.read_results(before), results.read_results(now)
    pairs = comparison.compare(first, second)
    for words in comparison.differences(first, second):
        echo(f"differs in {words}")
    table(*report.pairs(pairs))
    comparison.refuse_slower(pairs)
