"""`gourmet train`: train a system's network; a stopped run can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FILE, PATH, POSITIVE, system_of
from gourmet.errors import echo
from gourmet.systems.parts import SystemParts


@click.command()
@click.argument("system", metavar="SYSTEM-OR-MODEL", callback=system_of)
@click.argument("overrides", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--data",
    type=PATH,
    help="Learn from this folder or file. [default: the data that comes with the system, if any]",
)
@click.option("--out", type=PATH, help="Keep the run in this folder. [default: runs/SYSTEM]")
@click.option("--epochs", type=POSITIVE, help="Number of epochs. [default: the system's recipe]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Highest learning rate.")
@click.option("--seed", type=int, default=0, help="Seed of the run.")
@click.option("--limit", type=POSITIVE, help="Use at most N examples.")
@click.option("--resume", is_flag=True, help="Resume from the checkpoint in --out, with its recipe.")
@click.option(
    "--init",
    type=PATH,
    help="Start from these weights: best.safetensors of a run, a plain .pth, or a served model.onnx.",
)
@click.option(
    "--rehearse",
    type=FOUND_FILE,
    metavar="WEIGHTS",
    help="Do not train: make the set of --data that `gourmet learn-more` rehearses for WEIGHTS.",
)
@click.option("--pretrained", is_flag=True, help="Start from ImageNet weights, downloaded by torchvision.")
@click.option("--mlflow", is_flag=True, help="Log to MLflow too, in runs/mlruns of this machine.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--threads", type=POSITIVE, help="Number of CPU threads. [default: torch's own choice]")
def train(system: str, out: Path | None, **options: Any) -> None:
    """Train SYSTEM's network; weights, checkpoint and log are written to --out.

    NAME=VALUE changes the configuration of a system that has one: `gourmet train translator width=512`.
    """
    from gourmet.learning.training_verb import rehearse, train
    from gourmet.training.task import TrainOptions

    parts, rehearsed = SystemParts(system), options.pop("rehearse")
    chosen = TrainOptions(out or Path("runs") / system, **options)
    if rehearsed:
        echo(rehearse(parts, rehearsed, chosen.data, bar))
    else:
        echo(train(system, parts, chosen, bar, echo))
