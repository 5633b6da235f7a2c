"""`gourmet up`: Triton and the web app, from nothing to an address."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import click
from click.core import ParameterSource

from gourmet.client.address import LOOPBACK
from gourmet.client.errors import ModelUnavailable, TritonUnreachable
from gourmet.client.model_config import Config
from gourmet.commands.options import as_options, port_options, repositories_option, url_option
from gourmet.commands.values import POSITIVE
from gourmet.errors import UsageError
from gourmet.runtime.files import home
from gourmet.serving import api_keys, preflight, run_file
from gourmet.serving.connect import connect
from gourmet.serving.readable_logs import LogPrinter, wants_json
from gourmet.serving.supervisor import CORRECTIONS, Supervisor, WebOptions
from gourmet.serving.teaching import Teaching, listening, teachable
from gourmet.serving.triton_server import ModelControl, TritonOptions, TritonServer
from gourmet.systems import registry

_OPEN = "others reach {} too: put a proxy in front, as docs/operating.md has it, and set TRUSTED_PROXIES=1"


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
    "--response-cache",
    "cache_mb",
    type=click.IntRange(0),
    default=0,
    metavar="MB",
    help="Cache answers of models whose config asks for it.",
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
    help="Load the models for study too; otherwise a verb loads one when it needs it.",
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
    cache_mb: int,
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
    started = time.monotonic()
    preflight.check_open_files()
    of_triton = {} if web_only else as_options(ports)
    claims = ({} if triton_only else {"--port": port}) | of_triton
    click.get_current_context().with_resource(preflight.claimed(claims))
    options = TritonOptions(
        repositories=tuple(path.resolve() for path in repositories),
        host=triton_host,
        model_control=model_control,
        response_cache_bytes=cache_mb << 20,
        traces_to=_traces_to(os.environ),
        key="" if unlocked else api_keys.make_key(os.environ),
        **ports,  # type: ignore[arg-type]
    )
    log = LogPrinter(verbose=verbose, as_json=wants_json(os.environ))
    served: Mapping[str, Config] = {}
    models: dict[str, str] = {}
    held_back: list[str] = []
    if not web_only:
        served = preflight.check_repositories(options.repositories)
        if systems:
            served = preflight.of_systems(served, systems)
        models = preflight.configured_models(os.environ, served)
        if not load_all and model_control == "explicit":
            held_back = preflight.held_back(served, models.values())
        preflight.check_ports(triton_host, of_triton)
    loaded = [name for name in served if name not in held_back]
    web = None
    if not triton_only:
        url = (url or run_file.found_url()) if web_only else options.http_url
        if web_only:
            _check_chosen_models(url)
        web = WebOptions(
            *(host, port, workers, threads, url, "" if web_only else options.grpc_url),
            preflight.models_of_web({name: served[name] for name in loaded}),
            "" if web_only else options.metrics_url,
            _corrections(os.environ, host),
        )
        preflight.check_ports(host, {"--port": port})

    def announce() -> None:
        log.say("gourmet", f"ready after {time.monotonic() - started:.1f} s; Ctrl-C stops", "green")
        if not web_only:
            log.say("gourmet", f"Triton   http://{options.http_url}, gRPC {options.grpc_url}", "green")
        if held_back:
            log.say("gourmet", f"{', '.join(held_back)}: loaded when a verb asks, or all with --all")
        if web:
            log.say("gourmet", f"the page {web.url}", "green")
            if host not in LOOPBACK:
                log.say("gourmet", _OPEN.format(host), "yellow")

    with contextlib.ExitStack() as kept:
        server = None
        if not web_only:
            server = kept.enter_context(contextlib.closing(TritonServer(options, log.sink("triton"))))
            stack = run_file.RunningStack(
                pid=os.getpid(),
                http_url=options.http_url,
                grpc_url=options.grpc_url,
                metrics_url=options.metrics_url,
                web_url=web.url if web else "",
                repositories=[str(path) for path in options.repositories],
                model_control=options.model_control,
            )
            content = {"stack": asdict(stack)} | ({"admin": options.key} if options.key else {})
            listen = options.http_port, options.grpc_port
            kept.enter_context(run_file.kept(listen, content))
        teaching = None
        defaults = {name: system.default_model for name, system in registry.load_all().items()}
        if web and web.corrections and server and (taught := teachable(defaults, options.repositories)):
            system, model = taught
            teaching = Teaching(
                *(system, model, web.corrections / system, options.http_url),
                lambda text: log.say("gourmet", text),
            )
            web = replace(web, teach_socket=kept.enter_context(listening(teaching, f"teach-{port}.sock")))
        on_stop = teaching.close if teaching else lambda: None
        Supervisor(log, models, server, web, loaded, on_stop).run(announce)
    log.say("gourmet", "stopped")


def _corrections(env: Mapping[str, str], host: str) -> Path | None:
    """Return the folder of corrected photos: the configured one, else the user's own on loopback alone."""
    configured = env.get(CORRECTIONS)
    if configured is None and host in LOOPBACK:
        return home() / "corrections"
    return Path(configured.strip()).resolve() if configured and configured.strip() else None


def _check_chosen_models(url: str) -> None:
    """Raise UsageError if a variable names a model that this Triton lacks, or one of another system."""
    for system, contract in registry.load_all().items():
        if not (name := os.environ.get(contract.model_variable)):
            continue
        refused = f"{contract.model_variable} is {name!r}, which is"
        try:
            with connect(url) as triton:
                info = triton.describe(name)
        except ModelUnavailable as exc:
            if exc.state:  # it may still be loading
                continue
            ready = ", ".join(exc.ready) or "none"
            raise UsageError(f"{refused} not a served model: choose one of {ready}") from exc
        except TritonUnreachable:
            return
        if info.system not in ("", system):
            raise UsageError(f"{refused} a model of the system {info.system!r}: choose one of {system}")


def _traces_to(env: Mapping[str, str]) -> str:
    """Return where the web app sends its traces, so that Triton's go there too."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and f"{base.rstrip('/')}/v1/traces")
