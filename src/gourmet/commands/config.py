"""`gourmet config`: show or change the config of a served model while it serves."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import click
from tritonclient.utils import InferenceServerException

from gourmet import repository
from gourmet.config_change import VARIANTS, Change, Config, as_json, as_pbtxt, changed, summary
from gourmet.errors import UsageError
from gourmet.serving.asking import ModelUnavailable, model_index, triton
from gourmet.systems.openvino_network import ENGINES


class Duration(click.ParamType[int]):
    """A time as people write it, in microseconds: 100us, 2ms, 0."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s)?", str(value).strip())
        if not found or (found[2] is None and float(found[1])):
            self.fail(f"{value!r} is no time: write it like 100us, 2ms or 0", param, ctx)
        return round(float(found[1]) * {None: 1, "us": 1, "µs": 1, "ms": 1000, "s": 1_000_000}[found[2]])


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between: 4,8,16."""

    name = "N,N,…"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers: write it like 4,8", param, ctx)


@click.command()
@click.argument("model")
@click.option("--variant", type=click.Choice(list(VARIANTS)), help="A ready-made change; others go on top.")
@click.option("--instances", type=click.IntRange(1), help="How many copies work at the same time.")
@click.option("--threads", type=click.IntRange(0), help="CPU threads of each; 0 shares the CPUs out.")
@click.option("--max-batch", type=click.IntRange(0), help="Most rows that go through the network at once.")
@click.option("--dynamic/--no-dynamic", default=None, help="Merge waiting requests into one batch.")
@click.option("--delay", type=Duration(), help="How long a request may wait for company, like 100us.")
@click.option("--preferred", type=Numbers(), help="Batch sizes to prefer, like 4,8.")
@click.option("--gpus", type=Numbers(), help="Put the instances on these GPUs, like 0,1.")
@click.option("--cpu", is_flag=True, default=None, help="Put the instances on the CPU.")
@click.option(
    "--response-cache/--no-response-cache",
    "response_cache",
    default=None,
    help="Remember answers, where Triton was started with a cache (gourmet up --response-cache MB).",
)
@click.option("--engine", type=click.Choice(ENGINES), help="What runs an ONNX file on the CPU.")
@click.option("--reset", is_flag=True, help="Back to the config.pbtxt of the model repository.")
@click.option(
    "--model-repository",
    "folder",
    type=click.Path(path_type=Path),
    default=repository.DEFAULT,
    help="Where --reset finds it.  [default: triton/models]",
)
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Save it as a config.pbtxt.")
@click.option(
    "--url",
    envvar="TRITON_SERVER_URL",
    default="localhost:8000",
    show_default=True,
    help="Triton's HTTP address.",
)
def config(
    model: str,
    variant: str | None,
    instances: int | None,
    threads: int | None,
    max_batch: int | None,
    dynamic: bool | None,
    delay: int | None,
    preferred: tuple[int, ...] | None,
    gpus: tuple[int, ...] | None,
    cpu: bool | None,
    response_cache: bool | None,
    engine: str | None,
    reset: bool,
    folder: Path,
    write: Path | None,
    url: str,
) -> None:
    """Show or change the config of the served MODEL, with no rebuild and no restart.

    Without options the config that serves now is printed. A change goes to the running server, which
    loads the model anew beside the old one and then switches; the files on disk stay as they are
    (--write saves the result). If the new config cannot be loaded the old one goes on serving.

    \b
    gourmet config food_classifier --instances 2 --delay 100us
    gourmet config food_classifier --variant two-gpus
    gourmet config food_classifier --reset
    """
    change = Change(
        instances, threads, max_batch, dynamic, delay, preferred, gpus, cpu, response_cache, engine
    )
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
        # Asked to load without a config, Triton keeps the changed one: the files did not change.
        wanted = as_json(repository.read_config(folder / model)) if reset else changed(running, change)
        if reset or change:
            _load(client, model, wanted)
        now = client.get_model_config(model)
        if write:
            write.write_text(as_pbtxt(now))
    if reset or change:
        click.echo(f"was: {summary(running)}")
        click.echo(f"now: {summary(now)}  (loaded in {time.monotonic() - started:.1f} s)")
    elif not write:
        click.echo(as_pbtxt(now), nl=False)


def _load(client: Any, model: str, config: Config) -> None:
    try:
        client.load_model(model, config=json.dumps(config))
    except InferenceServerException as exc:
        raise ModelUnavailable(
            f"Triton refuses this config and goes on with the one before: {exc.message()}"
        ) from exc
