"""`gourmet client`: a deployed network's answers, with the flags of NVIDIA's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND, FOUND_FILE, PATH, POSITIVE
from gourmet.errors import GourmetError


@click.command()
@click.option("--triton-server-url", "url", required=True, help="Triton, HTTP or gRPC: localhost:8001.")
@click.option("--triton-model-name", "model", required=True, help="The deployed model.")
@click.option("-v", "--verbose", is_flag=True, help="Say what each batch was answered.")
@click.option(
    "--inference_data",
    "data",
    type=FOUND,
    help="A .bin of raw rows, or a folder with a folder of pictures for each class.  [default: noise]",
)
@click.option("--batch_size", type=POSITIVE, default=1, help="Rows a request.")
@click.option("--fp16", "half", is_flag=True, help="Send half precision.")
@click.option("--rows", "count", type=POSITIVE, default=64, help="How many rows of noise.")
@click.option("--seed", default=0, help="Of the noise.")
@click.option("--reference", type=FOUND_FILE, help="The checkpoint, to compare with the network itself.")
@click.option("--config", default="", help="The network of --reference, as the deployer names it.")
@click.option("--min-top1", type=click.FloatRange(0, 1), help="Fail if fewer answers are right.")
@click.option("--min-agreement", type=click.FloatRange(0, 1), help="Fail if fewer are the network's.")
@click.option(
    "--max-difference",
    type=click.FloatRange(0, min_open=True),
    help="Fail if a score differs more.  [default: what the deployer's gate allows]",
)
@click.option("--json", "json_to", metavar="FILE", help="Write the numbers as JSON; `-` prints them instead.")
@click.option("--out", type=PATH, help="Draw them on a page: FILE.html.")
def client(url: str, verbose: bool, json_to: str | None, out: Path | None, model: str, **wanted: Any) -> None:
    """Ask a deployed network, and say how right it is and how near to the network it was made of.

    \b
    gourmet client --triton-server-url localhost:8001 --triton-model-name rnxt-onnx --batch_size 16
    gourmet client --triton-server-url localhost:8001 --triton-model-name rnxt-onnx --batch_size 16 \\
        --config resnext101-32x4d --reference model_checkpoint --min-agreement 1
    """
    from gourmet.runtime.files import write_whole
    from gourmet.serving.either import triton_at
    from gourmet.tasks.classification.deployer.client import Wanted, ask

    asked = Wanted(model, **wanted)
    with triton_at(url) as server, bar(f"asking {model}") as tick:
        report = ask(server, asked, tick, lambda words: click.echo(words, err=True) if verbose else None)
    if json_to and json_to != "-":
        write_whole(Path(json_to), report.as_json())
    click.echo(report.as_json() if json_to == "-" else report.summary(), nl=json_to != "-")
    if out:
        write_whole(out, report.page())
        click.echo(f"page in {out}", err=True)
    if report.faults:
        raise GourmetError("\n       ".join(report.faults))
