"""`gourmet bench deployer`: a network in every format of the deployer, each measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gourmet.commands import values
from gourmet.commands.bench_options import command_line, measuring, table
from gourmet.commands.options import serving_url
from gourmet.commands.progress import bar
from gourmet.commands.values import FOLDER, FOUND_FILE, FOUND_FOLDER
from gourmet.errors import UsageError
from gourmet.measure import deployer_report, results, validity
from gourmet.measure.scenarios import deployer as deploying
from gourmet.measure.task import Addresses, MeasureOptions


@click.command()
@click.argument("repository", metavar="MODEL_REPOSITORY", type=FOLDER)
@click.argument("log", metavar="LOG_DIRECTORY", type=FOLDER)
@click.argument("architecture", metavar="ARCHITECTURE")
@click.argument("checkpoint", metavar="[CHECKPOINT]", type=FOUND_FILE, required=False)
@click.option("--formats", default="ts-script,onnx", help=f"Formats, out of {', '.join(deploying.FORMATS)}.")
@click.option("--fp16", "half", is_flag=True, help="Deploy in half precision, which makes few CPUs faster.")
@click.option(
    "--batches",
    type=values.counts,
    default="1,2,4,8,16,32,64",
    help="Static batching: pictures per request.",
)
@click.option(
    "--concurrency",
    "levels",
    type=values.counts,
    default="1,2,4,8,16,32,64,128,256",
    help="Dynamic batching: requests in flight.",
)
@click.option("--engines", type=values.counts, default="1,2", help="Dynamic batching: instances.")
@click.option(
    "--delays",
    "delays_us",
    type=values.durations,
    default="0",
    help="Dynamic batching: queue delays.",
)
@click.option("--rows", type=click.IntRange(2), default=16, help="Number of pictures to send.")
@click.option("--write", type=FOUND_FOLDER, help="Folder in which to write a page in Markdown, such as docs.")
@measuring
def deployer(
    repository: Path,
    log: Path,
    formats: str,
    write: Path | None,
    target: Addresses,
    options: MeasureOptions,
    save: Path | None,
    as_json: bool,
    **plan: Any,
) -> None:
    """Deploy ARCHITECTURE in every format and measure each, as NVIDIA's benchmark.sh does.

    Static batching with several pictures a request, dynamic batching with single pictures and many requests
    at a time. What was measured is kept in LOG_DIRECTORY: the same command goes on where it was stopped.
    It asks the running stack if that serves MODEL_REPOSITORY, else a Triton of its own.

    \b
    gourmet bench deployer repository logs resnext101-32x4d model_checkpoint
    gourmet bench deployer repository logs torchvision:resnet18 --batches 1,8 --concurrency 1,8 --engines 1
    """
    chosen = tuple(formats.split(","))
    if unknown := [form for form in chosen if form not in deploying.FORMATS]:
        raise UsageError(f"--formats has {unknown[0]!r}; there are {', '.join(deploying.FORMATS)}")
    named = click.get_current_context().get_parameter_source("url") != click.core.ParameterSource.DEFAULT
    running = target if named or serving_url(repository) else None
    with bar(f"bench {plan['architecture']}") as tick:
        result = deploying.run(
            deploying.Plan(repository=repository, log=log, formats=chosen, **plan),
            running,
            options,
            command=command_line(),
            on_step=tick,
        )
    if not result.points:
        raise validity.Untrusted("; ".join(map(str, result.refused)))
    deployer_report.save(result, save or log)
    if write:
        page = write / f"deployer-{plan['architecture'].replace(':', '-')}.md"
        deployer_report.write_markdown(result, page)
        click.echo(f"wrote {page}", err=True)
    if as_json:
        click.echo(results.as_json(result), nl=False)
    else:
        for title, found in deployer_report.tables(result.points):
            click.echo(title)
            table(*found)
        table(*deployer_report.choices(result.points))
        click.echo(f"saved in {save or log}: open {save or log}/index.html")
    for refused in result.refused:
        click.echo(str(refused), err=True)
