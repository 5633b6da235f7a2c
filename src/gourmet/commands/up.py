"""`gourmet up`: Triton and the web app, from nothing to an address."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from gourmet.commands.options import alone_in, port_options, repositories_option, url_option
from gourmet.commands.values import POSITIVE
from gourmet.errors import UsageError
from gourmet.repository.lock import UNDO_FILE
from gourmet.stack import api_keys, run_file
from gourmet.stack.readable_logs import LogPrinter, wants_json
from gourmet.stack.stack import run_stack, traces_to
from gourmet.stack.supervisor import WebOptions
from gourmet.stack.triton_server import ModelControl, TritonOptions
from gourmet.systems import registry


def _help() -> str:
    """The verb's help, which knows the systems by looking."""
    variables = "\n".join(
        f"{system.model_variable}  {system.title} (unless set: {system.default_model})"
        for system in registry.load_all().values()
    )
    return (
        "Run the product: Triton and the web app, until Ctrl-C.\n\n"
        "Variables of the environment choose the served model that answers for each system:\n\n"
        f"\b\n{variables}\n\n"
        "The same user's other commands find the running stack by themselves, and the key that changes to "
        "Triton need: each start makes a new one for loading models, shared memory, logging and traces."
    )


@click.command(help=_help())
@click.option("--host", default="127.0.0.1", help="Address that the web app listens on.")
@port_options()
@click.option("--workers", default=2, type=POSITIVE, help="Number of web processes.")
@click.option("--threads", default=4, type=POSITIVE, help="Number of photos at once in each process.")
@click.option("--triton-host", default="127.0.0.1", help="Address that Triton listens on.")
@repositories_option()
@click.option(
    "--model-control",
    type=click.Choice(["explicit", "poll", "none"]),
    default="explicit",
    help="explicit: load, unload and reconfigure while running; poll: follow the folder; none: neither.",
)
@click.option(
    "--unlocked",
    is_flag=True,
    help="Let anyone who reaches Triton's ports load models and use shared memory, without a key.",
)
@click.option(
    "--all",
    "load_all",
    is_flag=True,
    envvar="GOURMET_LOAD_ALL",
    help="Load the captioner and the models for study too; otherwise a verb loads one when it needs it.",
)
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(registry.names()),
    help="Load the models of this system alone; repeat it for several.",
)
@click.option("--triton-only", is_flag=True, help="Start Triton without the web app.")
@url_option("Triton's address, for --web-only.  [default: the running stack's]", required=False)
@click.option("--web-only", is_flag=True, help="Start the web app for a Triton that runs already.")
@click.option("-v", "--verbose", is_flag=True, help="Show every line of Triton's log with its source.")
def up(
    host: str,
    port: int,
    workers: int,
    threads: int,
    triton_host: str,
    repositories: tuple[Path, ...],
    model_control: ModelControl,
    unlocked: bool,
    load_all: bool,
    systems: tuple[str, ...],
    triton_only: bool,
    url: str | None,
    web_only: bool,
    verbose: bool,
    **ports: int,
) -> None:
    if triton_only and web_only:
        raise UsageError("--triton-only and --web-only together leave nothing to start: give one or neither")
    if (
        click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
        and not web_only
    ):
        raise UsageError("--url is the Triton that --web-only asks: without that, one is started here")
    if systems and model_control != "explicit":
        raise UsageError(f"--model-control {model_control} has Triton load every model: drop --system")
    options = TritonOptions(
        repositories=tuple(path.resolve() for path in repositories),
        host=triton_host,
        model_control=model_control,
        traces_to=traces_to(os.environ),
        key="" if unlocked else api_keys.make_key(os.environ),
        **ports,  # type: ignore[arg-type]
    )
    web = WebOptions(host, port, workers, threads, (url or run_file.found_url()) if web_only else "")
    for repository in options.repositories if not web_only else ():
        if (repository / UNDO_FILE).exists():
            with alone_in(repository):
                pass
    log = LogPrinter(verbose=verbose, as_json=wants_json(os.environ))
    run_stack(log, None if web_only else options, None if triton_only else web, systems, load_all=load_all)
