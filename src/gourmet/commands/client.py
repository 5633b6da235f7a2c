"""`gourmet client`: a deployed network's answers, with the flags of NVIDIA's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gourmet.commands.options import url_option
from gourmet.commands.progress import bar
from gourmet.commands.report_output import Stopped, give, page_path, report_options
from gourmet.commands.values import FOUND, FOUND_FILE, POSITIVE


@click.command()
@url_option("Triton's HTTP or gRPC address.", "--triton-server-url")
@click.option("--triton-model-name", "model", required=True, help="Name of the deployed model.")
@click.option("-v", "--verbose", is_flag=True, help="Print the classes of each batch.")
@click.option(
    "--inference_data",
    "data",
    type=FOUND,
    help="A .bin of raw rows, or a folder with a folder of pictures for each class.  [default: noise]",
)
@click.option("--batch_size", type=POSITIVE, default=1, help="Rows per request.")
@click.option("--fp16", "half", is_flag=True, help="Send half precision.")
@click.option("--rows", "count", type=POSITIVE, default=64, help="Number of rows of noise to send.")
@click.option("--seed", default=0, help="Seed of the noise.")
@click.option("--reference", type=FOUND_FILE, help="The checkpoint, to compare with the network itself.")
@click.option("--config", default="", help="The network of --reference, as the deployer names it.")
@click.option("--min-top1", type=click.FloatRange(0, 1), help="Fail if a smaller share of answers is right.")
@click.option(
    "--min-agreement",
    type=click.FloatRange(0, 1),
    help="Fail if a smaller share of answers is the network's own.",
)
@click.option(
    "--max-difference",
    type=click.FloatRange(0, min_open=True),
    help="Fail if a score differs more.  [default: what the deployer's gate allows]",
)
@report_options
def client(
    url: str, verbose: bool, json_to: str | None, out: Path | None, model: str, **options: Any
) -> None:
    """Ask a deployed network; report how often it is right and how close it is to its original network.

    \b
    gourmet client --triton-server-url localhost:8001 --triton-model-name rnxt-onnx --batch_size 16
    gourmet client --triton-server-url localhost:8001 --triton-model-name rnxt-onnx --batch_size 16 \\
        --config resnext101-32x4d --reference model_checkpoint --min-agreement 1
    """
    from gourmet.serving.connect import LOADS_WITHIN_S, connect_either
    from gourmet.tasks.checking import TimedServer, run_check
    from gourmet.tasks.classification.deployer.check import ClientOptions, prepare

    asked, page = ClientOptions(model, **options), page_path(out, model)

    def say(words: str) -> None:
        if verbose:
            click.echo(words, err=True)

    with connect_either(url) as triton:
        check = prepare(triton, asked, say)
        try:
            report = run_check(check, model, TimedServer(triton, 1, LOADS_WITHIN_S), bar)
        except KeyboardInterrupt:
            raise Stopped("stopped before the first answer") from None
    give(report, json_to, page)
