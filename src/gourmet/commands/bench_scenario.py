"""`gourmet bench scenario`: the exercises of known labs, on the running server."""

from __future__ import annotations

from pathlib import Path

import click

from gourmet.commands.bench_options import (
    command_line,
    finish,
    measure_options,
    output_options,
    target_options,
)
from gourmet.commands.progress import bar
from gourmet.doctor import gpus
from gourmet.errors import UsageError
from gourmet.measure import scenario as running
from gourmet.measure import scenarios, storage
from gourmet.measure.inputs import DataSource
from gourmet.measure.task import Addresses, MeasureOptions


@click.command()
@click.argument("name")
@click.option("--turns", default=1, show_default=True, type=click.IntRange(1), help="How often all is run.")
@click.option("--model", help="queue-delay: the model whose delay changes.  [default: food_classifier_onnx]")
@click.option(
    "--rows", "count", default=32, show_default=True, type=click.IntRange(2), help="How many inputs."
)
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path), help="A folder of examples instead of drawn ones."
)
@click.option(
    "--write",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder with labs.md, whose part of this scenario is rewritten, such as docs.",
)
@target_options
@measure_options
@output_options()
def scenario(
    name: str,
    turns: int,
    model: str | None,
    count: int,
    data: Path | None,
    write: Path | None,
    target: Addresses,
    effort: MeasureOptions,
    save: Path | None,
    as_json: bool,
) -> None:
    """Run the exercise NAME of a known lab on the running server, and say what it shows here.

    \b
    food         one instance, client batches, dynamic batching, 2 and 4 instances, ONNX, ONNX scaled
    digits       instance counts, queue delays on a model that cannot batch and on one that can
    queue-delay  how long a request may wait for company
    gpu          both food models on a GPU by instances and batching, up to 256 requests at a time
    foundation   what Triton adds to ONNX Runtime, and our model.py beside a lab's (on a server of its own)

    Configs change through Triton's load API; what served before is put back at the end.
    """
    if name not in (known := scenarios.known()):
        raise UsageError(f"no scenario {name!r} found; there are {', '.join(sorted(known))}")
    chosen = scenarios.load(name, model)
    if chosen.needs_gpu and not gpus.find():
        # Figures of a CPU under this title would mislead.
        raise UsageError(
            f"this machine has no NVIDIA GPU, which the scenario {name} is about: run it where one is, "
            "or `gourmet bench scenario food` here"
        )
    with bar(chosen.title) as tick:
        rows = DataSource(count, folder=data)
        result = running.run(chosen, target, effort, rows, turns=turns, command=command_line(), on_step=tick)
    if write and result.points:
        for path in storage.write_docs(result, name, write, chosen.page):
            click.echo(f"wrote {path}", err=as_json)
    finish(result, save, as_json)


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def foundation(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """The backend against raw ONNX Runtime, and model.py against a reference lab's.

    The scenario of that name with its usual options, which others may follow. It takes about three minutes a
    turn; on a machine that does something else at the same time the ratios still mean something, the rest
    does not.
    """
    # A busy machine's windows may never agree; the spread over the turns says how much they differ.
    usual = ("--turns=3", "--rows=64", "--window=2", "--windows=3", "--steady=30")
    with scenario.make_context("scenario", ["foundation", *usual, *arguments], parent=ctx.parent) as context:
        scenario.invoke(context)
