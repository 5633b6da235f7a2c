"""`gourmet config`: show or change the config of a served model while it serves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
from tritonclient.utils import InferenceServerException

from gourmet import repository
from gourmet.client.model_config import as_json, as_pbtxt
from gourmet.commands.options import repositories_option, url_option
from gourmet.commands.values import FILE, POSITIVE, duration, numbers
from gourmet.errors import UsageError
from gourmet.repository.config_change import VARIANTS, Change, changed, summary
from gourmet.runtime.openvino_network import ENGINES
from gourmet.serving.client import ModelUnavailable, model_index, triton


@click.command()
@click.argument("model")
@click.option("--variant", type=click.Choice(list(VARIANTS)), help="A ready-made change; others go on top.")
@click.option("--instances", type=POSITIVE, help="How many copies work at the same time.")
@click.option("--threads", type=click.IntRange(0), help="CPU threads of each; 0 shares the CPUs out.")
@click.option("--max-batch", type=click.IntRange(0), help="Most rows that go through the network at once.")
@click.option(
    "--dynamic/--no-dynamic", "dynamic_batching", default=None, help="Merge waiting requests into one batch."
)
@click.option(
    "--delay", "delay_us", type=duration, help="How long a request may wait for company, like 100us."
)
@click.option("--preferred", "preferred_batches", type=numbers, help="Batch sizes to prefer, like 4,8.")
@click.option("--gpus", type=numbers, help="Put the instances on these GPUs, like 0,1.")
@click.option("--cpu", is_flag=True, default=None, help="Put the instances on the CPU.")
@click.option(
    "--response-cache/--no-response-cache",
    default=None,
    help="Remember answers, where Triton was started with a cache (gourmet up --response-cache MB).",
)
@click.option("--engine", type=click.Choice(ENGINES), help="What runs an ONNX file on the CPU.")
@click.option("--reset", is_flag=True, help="Back to the config.pbtxt of the model repository.")
@repositories_option(found=True)
@click.option("--write", type=FILE, help="Save it as a config.pbtxt.")
@url_option()
def config(
    model: str,
    variant: str | None,
    reset: bool,
    repositories: tuple[Path, ...],
    write: Path | None,
    url: str,
    **turns: Any,
) -> None:
    """Show or change the config of the served MODEL, with no rebuild and no restart.

    Without options the config that serves now is printed. A change goes to the running server, which
    loads the model beside the old one and then switches; the files on disk stay as they are
    (--write saves the result). If the new config cannot be loaded the old one goes on serving.

    \b
    gourmet config food_classifier --instances 2 --delay 100us
    gourmet config food_classifier --variant two-gpus
    gourmet config food_classifier --reset
    """
    change = Change(**turns)
    if variant:
        change = change.over(VARIANTS[variant])
    if reset and change:
        raise UsageError("--reset takes the config of the repository as it is: drop the other options")
    with triton(url, timeout_s=120) as client:
        index = model_index(client)
        if model not in index:
            raise UsageError(f"Triton at {url} has no model {model!r}; it has {', '.join(sorted(index))}")
        running = client.get_model_config(model)
        started = time.monotonic()
        if reset:
            # Asked to load without a config, Triton keeps the changed one: the files did not change.
            holding = [folder for folder in repositories if (folder / model).is_dir()] or repositories
            wanted = as_json(repository.read_config(holding[0] / model))
        else:
            wanted = changed(running, change)
        try:
            if reset or change:
                client.load_model(model, config=json.dumps(wanted))
        except InferenceServerException as exc:
            raise ModelUnavailable(
                f"Triton refuses this config and goes on with the one before: {exc.message()}"
            ) from exc
        now = client.get_model_config(model)
        if write:
            write.write_text(as_pbtxt(now))
    if reset or change:
        click.echo(f"was: {summary(running)}")
        click.echo(f"now: {summary(now)}  (loaded in {time.monotonic() - started:.1f} s)")
    elif not write:
        click.echo(as_pbtxt(now), nl=False)
