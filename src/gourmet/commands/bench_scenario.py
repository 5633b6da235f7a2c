"""`gourmet bench scenario`: the exercises of known labs, on the running server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gourmet.commands.bench_options import effort_options, output_options, target_options
from gourmet.commands.bench_output import command_line, finish
from gourmet.commands.progress import bar


@click.command()
@click.argument("name", type=click.Choice(["food", "digits", "queue-delay", "gpu"]))
@click.option("--turns", default=1, show_default=True, type=click.IntRange(1), help="How often all is run.")
@click.option("--model", help="queue-delay: the model whose delay changes.  [default: food_classifier_onnx]")
@click.option(
    "--rows", "count", default=32, show_default=True, type=click.IntRange(2), help="How many inputs."
)
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path), help="A folder of photos instead of drawn ones."
)
@click.option(
    "--write",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder with labs.md, whose part of this scenario is written anew, such as docs.",
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
    write: Path | None,
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
    gpu          both food models on a GPU by instances and batching, up to 256 requests at a time

    Configs change through Triton's load API; what served before is put back at the end.
    """
    from gourmet.bench import labs_page
    from gourmet.bench import scenario as running
    from gourmet.bench.scenarios import SCENARIOS, gpu, queue_delay
    from gourmet.bench.sweep import Data
    from gourmet.errors import UsageError

    if model and name != "queue-delay":
        raise UsageError(f"the scenario {name} is about models of its own: drop --model")
    if name == "gpu":
        gpu.require()
    chosen = queue_delay.scenario(model) if model else SCENARIOS[name]()
    with bar(chosen.title) as tick:
        result = running.run(
            chosen,
            target,
            effort,
            Data(count, folder=data),
            turns=turns,
            command=command_line(),
            on_step=tick,
        )
    if write and result.points:
        for path in labs_page.write(result, name, write):
            click.echo(f"wrote {path}", err=as_json)
    finish(result, save, as_json)
