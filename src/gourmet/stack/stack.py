"""The stack of `gourmet up`: its checks, then Triton and the web app until a signal.

Triton starts first. The web app stops first, so that it drains while Triton still answers. supervisor.py
starts again what dies.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from gourmet.errors import UsageError
from gourmet.served.files import home
from gourmet.served.signals import set_on_stop
from gourmet.stack import preflight, run_file
from gourmet.stack.connect import connect
from gourmet.stack.readable_logs import LogPrinter
from gourmet.stack.supervisor import CORRECTIONS_ENV, Supervisor, WebOptions
from gourmet.stack.teaching import Teaching, listening
from gourmet.stack.triton_server import TritonOptions, TritonServer
from gourmet.systems import registry
from gourmet.triton_client.address import LOOPBACK
from gourmet.triton_client.errors import ModelUnavailable, TritonUnreachable

_OPEN: Final = (
    "others reach {} too: put a proxy in front, as docs/operating.md has it, and set TRUSTED_PROXIES=1"
)


def run_stack(
    log: LogPrinter,
    triton: TritonOptions | None,
    web: WebOptions | None,
    systems: Sequence[str] = (),
    *,
    load_all: bool = False,
) -> None:
    """Run Triton, a web app, or both, until a signal; without `triton`, the web app asks `web.triton_url`."""
    started = time.monotonic()
    preflight.check_open_files()
    if triton:
        preflight.check_ports(triton.host, triton.ports)
    if web:
        preflight.check_ports(web.host, {"--port": web.port})
    with contextlib.ExitStack() as kept:
        served = preflight.check_repositories(triton.repositories) if triton else {}
        if systems:
            served = preflight.of_systems(served, systems)
        models = preflight.configured_models(os.environ, served) if triton else {}
        held_back = []
        if triton and not load_all and triton.model_control == "explicit":
            held_back = preflight.held_back(served, models.values())
        loaded = [name for name in served if name not in held_back]
        if web:
            if not triton:
                _check_chosen_models(web.triton_url)
            web = replace(
                web,
                models=preflight.models_of_web({name: served[name] for name in loaded}),
                corrections=_corrections(os.environ, web.host),
            )
        server, stopping = None, threading.Event()
        kept.enter_context(set_on_stop(stopping))  # until now Ctrl-C ends this process at once
        if triton:
            kept.enter_context(_run_file(triton, web.url if web else ""))
            server = kept.enter_context(contextlib.closing(TritonServer(triton, log.sink("triton"))))
            if web and web.corrections:
                teaching = Teaching(
                    *(triton.repositories, web.corrections, triton.http_url),
                    lambda text: log.say("gourmet", text),
                )
                socket = kept.enter_context(listening(teaching, f"teach-{web.port}.sock"))
                web = replace(web, teach_socket=socket)

        def announce() -> None:
            log.say("gourmet", f"ready after {time.monotonic() - started:.1f} s; Ctrl-C stops", "green")
            if triton:
                log.say("gourmet", f"Triton   http://{triton.http_url}, gRPC {triton.grpc_url}", "green")
            if held_back:
                log.say("gourmet", f"{', '.join(held_back)}: loaded when a verb asks, or all with --all")
            if web:
                log.say("gourmet", f"the page {web.url}", "green")
                if web.host not in LOOPBACK:
                    log.say("gourmet", _OPEN.format(web.host), "yellow")

        Supervisor(log, stopping, models, loaded, server, web).run(announce)
    log.say("gourmet", "stopped")


def _run_file(triton: TritonOptions, web_url: str) -> contextlib.AbstractContextManager[Path]:
    """Tell this user's other programs about the stack within the block."""
    stack = run_file.RunningStack(
        pid=os.getpid(),
        http_url=triton.http_url,
        grpc_url=triton.grpc_url,
        metrics_url=triton.metrics_url,
        web_url=web_url,
        repositories=[str(path) for path in triton.repositories],
        model_control=triton.model_control,
    )
    content = {"stack": asdict(stack)} | ({"admin": triton.key} if triton.key else {})
    return run_file.run_file_for((triton.http_port, triton.grpc_port), content)


def _corrections(env: Mapping[str, str], host: str) -> Path | None:
    """Return the folder of corrected photos: the configured one, else the user's own on loopback alone."""
    configured = env.get(CORRECTIONS_ENV)
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


def traces_to(env: Mapping[str, str]) -> str:
    """Return where the web app sends its traces, so that Triton's go there too."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and f"{base.rstrip('/')}/v1/traces")
