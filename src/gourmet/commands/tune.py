"""`gourmet tune`: the best config of a served model on this machine, under a latency goal."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Final

import click

from gourmet.bench import tuning
from gourmet.bench.inputs import DataSource
from gourmet.bench.report import CHART, figures
from gourmet.commands.bench import command_line, measuring, table
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND, counts, durations, goal, levels, model_of
from gourmet.errors import GourmetError, echo

_COLUMNS: Final = 100


@click.command()
@click.argument("model", metavar="SYSTEM-OR-MODEL", callback=model_of)
@click.option("--p95", "p95_us", type=goal, help="Highest p95 that is allowed, like 50ms.")
@click.option(
    "--concurrency",
    "levels",
    type=levels,
    help="Requests kept in flight, like 4 or 1,4,16.  [default: 1, 2 a CPU, 8 a CPU]",
)
@click.option("--instances", type=counts, help="Instance counts to try.  [default: 1, 2, 4, … up to 2 a CPU]")
@click.option(
    "--threads", type=counts, help="Threads per instance to try.  [default: the CPUs shared out, and 1]"
)
@click.option(
    "--delays",
    "delays_us",
    type=durations,
    help="Queue delays to try.  [default: 100us,1ms, below half of --p95]",
)
@click.option(
    "--turns", default=5, type=click.IntRange(tuning.MIN_TURNS), help="A/B rounds against the current config."
)
@click.option("--apply", is_flag=True, help="Load the best config if it wins the A/B rounds.")
@click.option("--data", type=FOUND, help="Folder of examples, or an .npz by input.")
@click.option("--rows", "count", default=16, type=click.IntRange(2), help="Number of inputs to send.")
@measuring
def tune(
    model: str,
    p95_us: int | None,
    data: Path | None,
    count: int,
    target: Any,
    options: Any,
    save: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Find the config with which the served MODEL answers most rows a second on this machine.

    Configs go to the running server through the load API: a grid in short windows, and at last the best two
    and the present config in turns. Only these decide. Afterwards the server has its earlier config again;
    with --apply the best, if it won.

    \b
    gourmet tune food_classifier_onnx --p95 50ms
    gourmet tune digits --concurrency 1 --apply
    """
    request = tuning.TuneRequest(model, p95_ms=p95_us and p95_us / 1000, **how)
    with bar(f"tune {model}") as tick:
        rows = DataSource(count, folder=data)
        result = tuning.tune(request, target, options, rows, command=command_line(), on_step=tick)
    folder = result.save(save)
    if as_json:
        echo(result.as_json(), nl=False)
    else:
        echo(result.sentence)
        table(*figures(result.ranked))
        refused = [trial.refused for trial in result.trials if trial.refused]
        for words in (*result.searched, *refused):
            echo(textwrap.fill(f"· {words}", _COLUMNS, subsequent_indent="  "))
        if result.final:
            echo("In turns against the present config:")
            table(*figures([result.final.ours, result.final.theirs]))
        echo(f"The server has {'the best' if result.applied else 'its earlier'} config.")
        config = ", config.pbtxt" if result.recommended else ""
        echo(f"saved in {folder}: tune.json, {CHART}{config}")
    if result.verdict in ("out of reach", "undecided"):
        raise GourmetError(result.sentence)
