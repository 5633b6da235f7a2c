"""`gourmet up`: Triton and the web app, from nothing to an address."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import click

from gourmet.commands.stack_options import port_options, repositories_option
from gourmet.errors import UsageError
from gourmet.serving import locks, preflight
from gourmet.serving.readable_logs import LogPrinter
from gourmet.serving.supervisor import Supervisor, WebOptions
from gourmet.serving.triton_server import ModelControl, TritonOptions, TritonServer
from gourmet.serving.wheel import find_wheel

_MODEL_CONTROLS = click.Choice(["explicit", "poll", "none"])


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the web app listens on.")
@port_options
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Web processes.")
@click.option(
    "--threads", default=4, show_default=True, type=click.IntRange(1), help="Photos each works on at once."
)
@click.option("--triton-host", default="127.0.0.1", show_default=True, help="Address that Triton listens on.")
@repositories_option
@click.option(
    "--model-control",
    type=_MODEL_CONTROLS,
    default="explicit",
    show_default=True,
    help="explicit: load, unload and reconfigure while running; poll: follow the folder; none: neither.",
)
@click.option(
    "--response-cache",
    "cache_mb",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="MB",
    help="Remember answers, for models whose config asks for it.",
)
@click.option(
    "--unlocked",
    is_flag=True,
    help="Let whoever reaches Triton's ports load models and use shared memory, without a key.",
)
@click.option("--triton-only", is_flag=True, help="Start Triton without the web app.")
@click.option("--web-only", is_flag=True, help="Start the web app for the Triton at TRITON_SERVER_URL.")
@click.option("-v", "--verbose", is_flag=True, help="Every line of Triton's log, with where it comes from.")
def up(
    host: str,
    port: int,
    workers: int,
    threads: int,
    triton_host: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    repositories: tuple[Path, ...],
    model_control: ModelControl,
    cache_mb: int,
    unlocked: bool,
    triton_only: bool,
    web_only: bool,
    verbose: bool,
) -> None:
    """Run the product: Triton and the web app, until Ctrl-C.

    FOOD11_MODEL_NAME says which served model answers the page (food_classifier unless set),
    DIGITS_MODEL_NAME which one reads digits (digits unless set), and TRITON_SERVER_URL where Triton
    is, if it is not this command that starts it.

    What changes the running Triton (loading models, shared memory, its logging and traces) takes a
    key that is made at each start, which the other commands of the same user find by themselves.
    """
    if triton_only and web_only:
        raise UsageError("--triton-only and --web-only together leave nothing to start: give one or neither")
    started = time.monotonic()
    options = TritonOptions(
        repositories=tuple(path.resolve() for path in repositories),
        host=triton_host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        model_control=model_control,
        response_cache_bytes=cache_mb << 20,
        traces_to=_traces_to(os.environ),
        keys=None if unlocked else locks.Keys.made(os.environ),
    )
    log = LogPrinter(verbose=verbose)
    web = None
    if not triton_only:
        url = os.environ.get("TRITON_SERVER_URL", "localhost:8000") if web_only else options.http_url
        memory_key = options.keys.memory if options.keys and not web_only else ""
        web = WebOptions(host, port, workers, threads, url, memory_key)
        preflight.check_ports(host, {"--port": port})
    models: list[preflight.ConfiguredModel] = []
    server = None
    if not web_only:
        wheel = find_wheel()
        served = preflight.check_repositories(options.repositories)
        models = preflight.configured_models(os.environ, served)
        preflight.check_ports(
            triton_host,
            {"--http-port": http_port, "--grpc-port": grpc_port, "--metrics-port": metrics_port},
        )
        server = TritonServer(options, log.sink("triton"), wheel)

    def announce() -> None:
        log.say("gourmet", f"ready after {time.monotonic() - started:.1f} s; Ctrl-C stops", "green")
        if server:
            log.say("gourmet", f"Triton   http://{options.http_url}, gRPC {options.grpc_url}", "green")
        if web:
            log.say("gourmet", f"the page {web.url}", "green")

    with contextlib.ExitStack() as kept:
        if server and options.keys:
            kept.enter_context(locks.kept(options.keys, http_port, grpc_port))
        Supervisor(log, models, server, web).run(announce)
    log.say("gourmet", "stopped")


def _traces_to(env: Mapping[str, str]) -> str:
    """Where the web app sends its traces to, so that Triton's go there too."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and f"{base.rstrip('/')}/v1/traces")
