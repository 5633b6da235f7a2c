"""`gourmet config`: show or change the config of a served model while it serves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import click

from gourmet.commands.options import json_option, repositories_option, url_option
from gourmet.commands.values import FILE, POSITIVE, duration, model_of, numbers, versions
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.repository.config_change import VARIANTS, Change, changed
from gourmet.repository.models import read_config, repository_text
from gourmet.served.files import write_whole
from gourmet.served.instances import PRECISIONS, available_cpus
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.triton_client import model_config
from gourmet.triton_client.errors import TritonRefused
from gourmet.triton_client.model_config import summary

_INSTANCES_A_CORE: Final = 4


@click.command()
@click.argument("model", metavar="SYSTEM-OR-MODEL", callback=model_of)
@click.option(
    "--variant", type=click.Choice(list(VARIANTS)), help="A named set of changes; other options add to it."
)
@click.option("--instances", type=POSITIVE, help="Number of instances.")
@click.option("--threads", type=click.IntRange(0), help="CPU threads per instance; 0 shares the CPUs.")
@click.option("--max-batch", type=POSITIVE, help="Largest batch, in rows.")
@click.option(
    "--dynamic/--no-dynamic", "dynamic_batching", default=None, help="Merge waiting requests into one batch."
)
@click.option(
    "--delay", "delay_us", type=duration, help="Let a request wait for more requests this long, like 100us."
)
@click.option("--preferred", "preferred_batches", type=numbers, help="Batch sizes to prefer, like 4,8.")
@click.option("--gpus", type=numbers, help="Put the instances on these GPUs, like 0,1.")
@click.option("--cpu", is_flag=True, default=None, help="Put the instances on the CPU.")
@click.option(
    "--precision", type=click.Choice(PRECISIONS), help="Precision on the CPU, of a model that has several."
)
@click.option(
    "--versions",
    type=versions,
    help="Versions that serve side by side, like 1,2, or all; clients choose one by NAME/VERSION.",
)
@click.option("--force", is_flag=True, help="Allow more than four instances for each core of this machine.")
@click.option("--reset", is_flag=True, help="Go back to the config.pbtxt of the model repository.")
@repositories_option(found=True)
@click.option("--raw", is_flag=True, help="Print the config as protobuf text.")
@json_option
@click.option("--write", type=FILE, help="Save the config as this config.pbtxt.")
@url_option()
def config(
    model: str,
    variant: str | None,
    force: bool,
    reset: bool,
    repositories: tuple[Path, ...],
    raw: bool,
    as_json: bool,
    write: Path | None,
    url: str,
    **changes: Any,
) -> None:
    """Show or change the config of the served MODEL, with no rebuild and no restart.

    Without options it prints the config in a sentence; with --raw, as protobuf text. A change goes to the
    running server, which loads the model beside the old one and then switches. Files on disk do not change
    (--write saves the result). If the new config cannot be loaded, the old one serves on.

    \b
    gourmet config food_classifier --instances 2 --delay 100us
    gourmet config food_classifier --variant two-gpus
    gourmet config food_classifier --reset
    """
    change = Change(**changes)
    allowed = _INSTANCES_A_CORE * available_cpus()
    if not force and (change.instances or 0) > allowed:
        raise UsageError(
            f"--instances {change.instances} may take all memory of this machine: each can be a process, and "
            f"more than {allowed} ({_INSTANCES_A_CORE} for each core) are not faster. Add --force to try it"
        )
    if write and write.exists() and "#" in repository_text(write):
        raise UsageError(
            f"--write {write} would replace a file with comments: name another, or delete it first"
        )
    if variant:
        change = change.over(VARIANTS[variant])
    if reset and change:
        raise UsageError("--reset takes the config of the repository as it is: drop the other options")
    with connect(url, LOADS_WITHIN_S) as triton:
        index = triton.index()
        if model not in index:
            raise UsageError(
                f"Triton at {url} has no model {model!r}; it has {', '.join(sorted(index))}. "
                f"`gourmet load {model} --from FOLDER` adds a folder of yours"
            )
        running = triton.config(model)
        if reset:
            # Asked to load without a config, Triton keeps the changed one: the files did not change.
            holding = [folder for folder in repositories if (folder / model).is_dir()]
            if not holding:
                raise UsageError(
                    f"--reset takes the config of {model} from what {url} serves: name that with --repository"
                )
            chosen = model_config.as_json(read_config(holding[0] / model))
        else:
            chosen = changed(running, change)
        started = time.monotonic()
        if reset or change:
            try:
                triton.load(model, chosen)
            except TritonRefused as exc:
                if "unsupported gpu id" in exc.reason:
                    raise GourmetError(
                        f"Triton at {url} does not see all of these GPUs, and goes on with the one before: "
                        "choose others with --gpus, or --cpu"
                    ) from exc
                raise GourmetError(
                    f"Triton refuses this config and goes on with the one before: {exc.reason}"
                ) from exc
        now = triton.config(model)
        serve = [name for name in triton.ready_versions() if name.partition("/")[0] == model]
        if write:
            write_whole(write, model_config.as_pbtxt(now))
    if as_json:
        before = {"was": running} if reset or change else {}
        echo(json.dumps({"model": model, **before, "config": now, "serve": serve}, indent=2))
    elif reset or change:
        echo(f"was: {summary(running)}")
        echo(f"now: {summary(now)}  (loaded in {time.monotonic() - started:.1f} s)")
        # A config as Triton answers it keeps the policy with which its instances were made.
        if change.versions is not None:
            echo(f"serve: {', '.join(serve)}")
    elif not write:
        echo(model_config.as_pbtxt(now) if raw else f"{summary(now)}\n", nl=False)
