"""`gourmet bench`: speed that can be believed, answers checked."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gourmet.commands.bench_options import (
    Range,
    Sizes,
    effort_options,
    output_options,
    target_options,
)
from gourmet.commands.config import Numbers
from gourmet.commands.progress import bar

if TYPE_CHECKING:
    from gourmet.bench.results import Bench


@click.group()
def bench() -> None:
    """Measure speed against a stated baseline, answers checked.

    A figure is reported only if every answer was the right one, Triton counted the rows that were sent,
    Little's law holds, the windows agree, nothing failed and the client had time to spare.
    """


@bench.command()
@click.argument("model")
@click.option("--concurrency", type=Range(), help="Requests kept in flight, like 8, 1:8, 1:16:5 or 1,4,16.")
@click.option("--rate", type=Range(), help="Requests per second instead, like 50 or 20:100:20.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="How the requests of a --rate are spaced.",
)
@click.option("--batch", type=Numbers(), default="1", help="Rows a request, like 1 or 1,4,16.  [default: 1]")
@click.option("--protocol", type=click.Choice(["http", "grpc"]), default="http", show_default=True)
@click.option("--shared-memory", is_flag=True, help="Hand the inputs over in shared memory.")
@click.option(
    "--through",
    type=click.Choice(["triton", "app"]),
    default="triton",
    show_default=True,
    help="Ask Triton, or the web app's POST /predict.",
)
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path), help="A folder of photos, or an .npz by input."
)
@click.option(
    "--rows", "count", default=32, show_default=True, type=click.IntRange(1), help="How many inputs."
)
@click.option("--seed", default=5, show_default=True, help="Of the inputs that are made up.")
@click.option("--photo-size", type=Sizes(), default="400x300", show_default=True, help="Of the drawn photos.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME:D,D", help="One row of an input left open.")
@click.option(
    "--reference",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An ONNX file whose answers without a server are the right ones.  [default: rows asked alone]",
)
@target_options
@effort_options
@output_options
def run(
    model: str,
    concurrency: tuple[float, ...] | None,
    rate: tuple[float, ...] | None,
    arrivals: str,
    batch: tuple[int, ...],
    protocol: str,
    shared_memory: bool,
    through: str,
    data: Path | None,
    count: int,
    seed: int,
    photo_size: tuple[int, int],
    shapes: tuple[str, ...],
    reference: Path | None,
    target: Any,
    effort: Any,
    save: Path | None,
    as_json: bool,
) -> None:
    """Measure the served MODEL under one load or a range of them.

    \b
    gourmet bench run food_classifier --concurrency 1:8
    gourmet bench run food_classifier_onnx --concurrency 4 --batch 1,4 --protocol grpc --shared-memory
    gourmet bench run food_classifier --rate 20:100:20
    gourmet bench run food_classifier --concurrency 8 --through app
    """
    from gourmet.bench import sweep
    from gourmet.bench.results import Demand
    from gourmet.errors import UsageError

    if concurrency and rate:
        raise UsageError(
            "--concurrency keeps requests in flight and --rate sends them by the clock: give one"
        )
    more: dict[str, Any] = {"protocol": protocol, "shared_memory": shared_memory, "through": through}
    if rate:
        more["arrivals"] = arrivals
    demands = [
        Demand(model, level, batch=rows, **more) for rows in batch for level in rate or concurrency or (1,)
    ]
    given = sweep.Data(count, seed, data, photo_size, _shapes(shapes), reference)
    with bar(f"bench {model}") as tick:
        tick(0.0, "asking every row alone")
        subject = sweep.prepare(model, target, given, through_app=through == "app")
        points, refused = sweep.run(subject, demands, target, effort, on_step=tick)
    title = f"{model}{' through the web app' if through == 'app' else ''}"
    _finish(sweep.bench(title, _command(), subject.rows, points, refused), save, as_json)


@bench.command()
@click.argument("name", type=click.Choice(["food", "digits", "queue-delay"]))
@click.option("--turns", default=1, show_default=True, type=click.IntRange(1), help="How often all is run.")
@click.option("--model", help="queue-delay: the model whose delay changes.  [default: food_classifier_onnx]")
@click.option(
    "--rows", "count", default=32, show_default=True, type=click.IntRange(2), help="How many inputs."
)
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path), help="A folder of photos instead of drawn ones."
)
@target_options
@effort_options
@output_options
def scenario(
    name: str,
    turns: int,
    model: str | None,
    count: int,
    data: Path | None,
    target: Any,
    effort: Any,
    save: Path | None,
    as_json: bool,
) -> None:
    """Run the exercise of a known lab on the running server, and say what it shows here.

    \b
    food         one instance, client batches, dynamic batching, 2 and 4 instances, ONNX, ONNX scaled
    digits       instance counts, queue delays on a model that cannot batch and on one that can
    queue-delay  how long a request may wait for company

    Configs change through Triton's load API; what served before is put back at the end.
    """
    from gourmet.bench import scenario as running
    from gourmet.bench.scenarios import SCENARIOS, queue_delay
    from gourmet.bench.sweep import Data
    from gourmet.errors import UsageError

    if model and name != "queue-delay":
        raise UsageError(f"the scenario {name} is about models of its own: drop --model")
    chosen = queue_delay.scenario(model) if model else SCENARIOS[name]()
    with bar(chosen.title) as tick:
        result = running.run(
            chosen,
            target,
            effort,
            Data(count, folder=data),
            turns=turns,
            command=_command(),
            on_step=tick,
        )
    _finish(result, save, as_json)


@bench.command()
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("now", type=click.Path(exists=True, path_type=Path))
@click.option("--noise", default=5.0, show_default=True, help="Percent by which two runs may differ.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="An HTML page of it.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def compare(before: Path, now: Path, noise: float, save: Path | None, as_json: bool) -> None:
    """Compare two saved runs, folders or JSON files; fail where NOW is slower beyond noise."""
    import json

    from gourmet.bench import compare as comparing
    from gourmet.bench import page, saving, tables

    first, second = saving.load(before), saving.load(now)
    pairs = comparing.compare(first, second, noise / 100)
    if as_json:
        keys = ("point", "before", "now", "throughput", "latency", "p95", "verdict")
        click.echo(
            json.dumps([dict(zip(keys, tables.pair_row(pair), strict=True)) for pair in pairs], indent=1)
        )
    else:
        for words in comparing.differences(first, second):
            click.echo(f"differs in {words}")
        _table(tables.PAIR_HEADINGS, [tables.pair_row(pair) for pair in pairs])
    if save:
        save.write_text(page.comparison(first, second, pairs, noise / 100))
        click.echo(f"wrote {save}", err=True)
    comparing.refuse_slower(pairs, noise / 100)


@bench.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
def list_(as_json: bool, folder: Path | None) -> None:
    """The saved runs, the latest first."""
    import json

    from gourmet.bench import saving

    found = saving.saved(folder or saving.DEFAULT)
    rows = [(str(path), each.when, each.title, str(len(each.points))) for path, each in found]
    if as_json:
        keys = ("folder", "when", "title", "points")
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=1))
    elif rows:
        _table(("folder", "when", "title", "points"), rows)
    else:
        click.echo(f"no saved runs under {folder or saving.DEFAULT}: make one with `gourmet bench run MODEL`")


@bench.command()
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


def _finish(result: Bench, save: Path | None, as_json: bool) -> None:
    """Save and show a run; fail where any of it was refused."""
    from gourmet.bench import results, saving, tables, trust

    reasons = "; ".join(f"{each.name}: {each.reason}" for each in result.refused)
    if not result.points:
        raise trust.Untrusted(reasons)
    folder = saving.save(result, save)
    if as_json:
        click.echo(results.as_json(result), nl=False)
    else:
        _table(tables.HEADINGS, [tables.row(point) for point in result.points])
        for finding in result.findings:
            mark = {True: "✓", False: "✗", None: "·"}[finding.seen]
            click.echo(f"{mark} {finding.says}")
        click.echo(f"saved in {folder}: open {folder}/index.html")
    if result.refused:
        raise trust.Untrusted(f"measured and not reported: {reasons}")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    wide = sys.stdout.isatty()
    Console(width=None if wide else 200).print(table)


def _shapes(given: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    from gourmet.errors import UsageError

    found = {}
    for words in given:
        name, _, dims = words.rpartition(":")
        try:
            found[name] = tuple(int(dim) for dim in dims.split(","))
        except ValueError as exc:
            raise UsageError(f"--shape {words!r}: write it like input:3,224,224") from exc
    return found


def _command() -> str:
    """What was typed, for the reader of a report who wants to do it again."""
    words = sys.argv[1:] if Path(sys.argv[0]).name == "gourmet" else cast(list[str], [])
    return shlex.join(["gourmet", *words])
