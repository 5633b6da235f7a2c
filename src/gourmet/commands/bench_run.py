"""`gourmet bench run`: a served model under one load or a range of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gourmet.commands.bench_options import (
    command_line,
    finish,
    measure_options,
    output_options,
    target_options,
)
from gourmet.commands.progress import bar
from gourmet.commands.values import COUNTS, RANGE, SHAPE, SIZE
from gourmet.errors import UsageError
from gourmet.measure import sweep
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import LoadSpec


@click.command()
@click.argument("model")
@click.option("--concurrency", type=RANGE, help="Requests kept in flight, like 8, 1:8, 1:16:5 or 1,4,16.")
@click.option("--rate", type=RANGE, help="Requests per second instead, like 50 or 20:100:20.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="How the requests of a --rate are spaced.",
)
@click.option("--batch", type=COUNTS, default="1", help="Rows per request, like 1 or 1,4,16.  [default: 1]")
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
    "--data",
    "folder",
    type=click.Path(exists=True, path_type=Path),
    help="A folder of examples, or an .npz by input.",
)
@click.option(
    "--rows", "count", default=32, show_default=True, type=click.IntRange(1), help="How many inputs."
)
@click.option("--seed", default=5, show_default=True, help="Of the inputs that are made up.")
@click.option(
    "--photo-size", "size", type=SIZE, default="400x300", show_default=True, help="Of the drawn photos."
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=SHAPE,
    callback=lambda _context, _option, given: dict(given),
    help="One row of an input left open.",
)
@click.option(
    "--reference",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An ONNX file whose answers without a server are the right ones.  [default: rows asked alone]",
)
@target_options
@measure_options
@output_options()
def run(
    model: str,
    concurrency: tuple[float, ...] | None,
    rate: tuple[float, ...] | None,
    arrivals: Any,
    batch: tuple[int, ...],
    protocol: Any,
    shared_memory: bool,
    through: Any,
    target: Any,
    effort: Any,
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
    demands = [
        LoadSpec(model, level, arrivals if rate else "closed", rows, protocol, shared_memory, through)
        for rows in batch
        for level in rate or concurrency or (1,)
    ]
    with bar(f"bench {model}") as tick:
        tick(0.0, "asking every row alone")
        workload = sweep.prepare(model, target, DataSource(**data), through_app=through == "app")
        points, refused = sweep.run(workload, demands, target, effort, on_step=tick)
    loads = str(demands[0]) if len(demands) == 1 else f"{demands[0]} to {demands[-1]}"
    title = f"{model}: {loads}"
    finish(sweep.bench(title, command_line(), workload.rows.about, points, refused), save, as_json)
