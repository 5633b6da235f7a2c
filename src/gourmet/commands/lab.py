"""`gourmet lab`: open the notebooks in JupyterLab, beside a running stack, or start one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click
import psutil
from click.core import ParameterSource

from gourmet.commands.options import as_options, port_options, url_option
from gourmet.commands.perf_analyzer import find_program
from gourmet.commands.values import FOLDER
from gourmet.doctor import Examined, Finding, Level, check_configs_in_use
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.lab.exercises import FOLDER_ENV, folder
from gourmet.lab.handing_in import collect as collected
from gourmet.lab.handing_in import write_page
from gourmet.lab.restoring import restore_models
from gourmet.reports.table import columns
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served.files import shipped
from gourmet.served.instances import available_cpus
from gourmet.served.optional import how_to_install
from gourmet.served.signals import set_on_stop
from gourmet.stack.connect import connect
from gourmet.stack.preflight import NotReadyToStart, check_ports, free_ports
from gourmet.stack.processes import Child
from gourmet.stack.readable_logs import LogPrinter
from gourmet.stack.run_file import stack_at
from gourmet.triton_client.address import Address

_POLL_S: Final = 0.1
_ADDRESS: Final = re.compile(r"http://127\S+")
# Jupyter's lines before its log level applies, and around its address.
_TELLS_NOTHING: Final = re.compile(r"\[[IC] |To access|Or copy and paste|file://|\[W .* is not trusted$")
# What `gourmet lab check` asks for; measured: the stack with all models, and with those of food.
_NEEDS_MB: Final = 1150  # Triton and the web app 750, JupyterLab with two kernels 400
_FOOD_MB: Final = 800
_DISK_MB: Final = 500
# `gourmet up` takes less than ten seconds to end, and Jupyter little to end its kernels.
_JUPYTER_TIMEOUT_S: Final = 5.0
_STACK_TIMEOUT_S: Final = 10.0


@click.command("gourmet lab hand-in")
@click.option("--name", default="", help="Your name on the page; kept.  [default: your account's]")
def hand_in(name: str) -> None:
    """Write one page with your predictions, figures, answers and code, and its tables as CSV and JSON."""
    echo(f"written: {write_page(name)}")


@click.command("gourmet lab collect")
@click.argument("folder", type=FOLDER)
def collect(folder: Path) -> None:
    """Make one table of all that was handed in below FOLDER, a row a student: class.csv."""
    path, rows = collected(folder)
    names = [name for name in rows[0] if not name[-2:-1].isdigit() and name != "folder"]
    echo(columns([tuple(names), *(tuple(str(row[name]) for name in names) for row in rows)]))
    echo(f"written: {path}, with the verdict on each question")


@click.command("gourmet lab check")
def check() -> None:
    """Check this machine before class: memory, cores and load, disk, ports, JupyterLab, perf_analyzer."""
    findings = list(machine_findings())
    for finding in findings:
        echo(f"{finding.level:<4} {finding}")
    if any(finding.level == "fail" for finding in findings):
        raise GourmetError("the lab would not run here: see the lines marked fail")


_SUBCOMMANDS: Final = {"hand-in": hand_in, "collect": collect, "check": check}


def _subcommand(ctx: click.Context, _param: click.Parameter, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Run `hand-in`, `collect` or `check` before other options look for a running stack: they need none."""
    if arguments and not arguments[0].startswith("-"):
        if not (command := _SUBCOMMANDS.get(arguments[0])):
            near = get_close_matches(arguments[0], _SUBCOMMANDS, 1, 0.4)
            raise UsageError(
                f"`gourmet lab` has no {arguments[0]!r}: "
                + (f"did you mean {near[0]}?" if near else f"there are {', '.join(_SUBCOMMANDS)}")
            )
        command.main([*arguments[1:]], f"gourmet lab {arguments[0]}", standalone_mode=False)
        ctx.exit()
    return arguments


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--lab-port", default=8888, type=click.IntRange(1, 65535), help="Port of JupyterLab.")
@port_options(found=True)
@url_option("Triton's address.  [default: that of your running stack]", required=False)
@click.option(
    "--fresh", is_flag=True, help="Start again: move the work so far aside, and restore the server."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, is_eager=True, callback=_subcommand)
@click.pass_context
def lab(
    ctx: click.Context,
    /,
    lab_port: int,
    url: str | None,
    fresh: bool,
    arguments: tuple[str, ...],
    **ports: int,
) -> None:
    """Open the lab's notebooks in JupyterLab, until Ctrl-C.

    The notebooks are copied into runs/lab, where everything of your lab stays.

    \b
    gourmet lab hand-in --name "Ada Byron"   # one page: predictions, figures, answers, code
    gourmet lab check                        # is this machine ready for the lab?
    gourmet lab collect FOLDER               # for teachers: one table of all pages

    The notebooks ask the Triton at --url, or your own running one. Without either, Triton and the web app
    are started too, and end with the lab. Ports that are taken are replaced by free ones, unless they were
    named. JupyterLab listens on loopback and asks for the token that it prints. ARGUMENTS are passed to it,
    such as --no-browser.
    """
    if find_spec("jupyterlab") is None:
        raise GourmetError(f"JupyterLab is not installed here: run `{how_to_install('lab')}`")
    log, ending, running = LogPrinter(), threading.Event(), {}
    if fresh and folder().exists():
        aside = folder().with_name(f"lab-{time.strftime('%Y%m%d-%H%M%S')}")
        log.say("gourmet", f"the work so far is in {folder().rename(aside)}")
    if url and Address.of(url).scheme != "http":
        raise UsageError(f"the notebook and NVIDIA's tools in it ask over plain HTTP, not {url}")
    named = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    chosen, url = url, url or f"127.0.0.1:{ports['http_port']}"
    own = stack_at(url)
    if not (chosen or own or "http_port" in named):
        with connect(url) as triton:
            if triton.is_live():
                log.say("gourmet", f"the Triton at {url} is not yours: --url {url} would use it")
        ports = _free(ports, named)
        url = f"127.0.0.1:{ports['http_port']}"
    (lab_port,) = _free({"lab_port": lab_port}, named).values()
    # Jupyter, started last, ends first: its kernels use the stack.
    with set_on_stop(ending), connect(url) as triton, contextlib.ExitStack() as started:
        if chosen:  # a Triton that was named and does not answer is not replaced
            triton.check_live()
        if chosen or triton.is_live():
            whose = f"your Triton, process {own.pid}," if own else "the Triton"
            log.say("gourmet", f"the notebook asks {whose} at {url}")
            for finding in _changed_configs(url, chosen is not None):
                log.say("gourmet", str(finding), "yellow")
            if fresh:
                restore_models(url)
        else:
            log.say("gourmet", f"starting a Triton of your own at {url}, and the web app at {ports['port']}")
            options = [f"{option}={port}" for option, port in as_options(ports).items()]
            up = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", *options]
            stack = running["gourmet up"] = Child(up, env=os.environ, cwd=Path.cwd(), on_line=echo)
            started.callback(stack.stop, _STACK_TIMEOUT_S)
            ready = f"http://127.0.0.1:{ports['port']}/readyz"
            while not ending.wait(_POLL_S) and not stack.is_answering("gourmet up", ready):
                pass
        if not ending.is_set():
            jupyter = running["JupyterLab"] = _start_jupyter(url, lab_port, arguments, log)
            started.callback(jupyter.stop, _JUPYTER_TIMEOUT_S)
        while not ending.wait(_POLL_S):
            for name, child in running.items():
                if (status := child.exit_status()) is not None:
                    log.say("gourmet", f"{name} ended with status {status}")
                    ending.set()
    log.say("gourmet", "stopped")


def _free(ports: dict[str, int], named: Collection[str]) -> dict[str, int]:
    """Return the ports; one that is taken is replaced by a free one, unless it was named."""
    free = {}
    for name, port in ports.items():
        try:
            check_ports("127.0.0.1", {f"--{name.replace('_', '-')}": port})
        except NotReadyToStart:
            if name in named:
                raise
            (port,) = free_ports(1)
        free[name] = port
    return free


def _changed_configs(url: str, named: bool) -> list[Finding]:
    """Report what a killed notebook left changed, and how to put it back."""
    running = stack_at(url)
    folders = tuple(map(Path, running.repositories)) if running else (DEFAULT_REPOSITORY,)
    there = Examined(folders, "127.0.0.1", {}, url, named, os.environ)
    with connect(url) as triton:
        return list(
            check_configs_in_use(there, sorted({name.partition("/")[0] for name in triton.ready_versions()}))
        )


def _notebooks() -> Path:
    """Copy missing notebooks into the folder of the lab; return the folder."""
    for path in shipped("notebooks").iterdir():
        if path.suffix in (".ipynb", ".json") and not (folder() / path.name).exists():
            folder().mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder())
    return folder()


def _settings(notebooks: Path) -> Path:
    """Write the defaults of JupyterLab's settings that are not its own."""
    path = notebooks / ".jupyter" / "overrides.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}))
    return path.parent


def _start_jupyter(url: str, port: int, arguments: tuple[str, ...], log: LogPrinter) -> Child:
    notebooks = _notebooks()
    # For the cells that call `gourmet`, and the terminals of the lab.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    command = [
        *(sys.executable, "-P", "-m", "jupyterlab", f"--ServerApp.root_dir={notebooks}"),
        *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
        *("--LabApp.default_url=/lab/tree/triton.ipynb", "--log-level=WARN"),
        # By default it asks PyPI for a newer version, and the student whether it may fetch news.
        *("--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.news_url=None"),
        f"--LabApp.app_settings_dir={_settings(notebooks)}",
        # Jupyter refuses root unless told; here it is on loopback, behind its token.
        *(("--allow-root",) if os.geteuid() == 0 else ()),
        *arguments,
    ]

    def on_line(line: str) -> None:
        if address := _ADDRESS.search(line):
            log.say("gourmet", f"the notebook {address[0]}", "green")
            log.say("gourmet", "Ctrl-C ends the lab", "green")
        elif line.strip() and not _TELLS_NOTHING.match(line.strip()):
            log.say("jupyter", line.strip())

    env = {**os.environ, "TRITON_SERVER_URL": url, "PATH": path, FOLDER_ENV: str(notebooks)}
    return Child(command, env=env, cwd=notebooks, on_line=on_line)


def machine_findings() -> Iterator[Finding]:
    """Compare this machine with what the lab needs."""
    free_mb = psutil.virtual_memory().available >> 20
    needs = f"{_NEEDS_MB} MB a student; {_FOOD_MB} MB with `gourmet up --system food11`"
    level: Level = "ok" if free_mb >= _NEEDS_MB else "warn" if free_mb >= _FOOD_MB else "fail"
    yield Finding(level, f"memory: {free_mb} MB are free, the lab needs {needs}")
    cpus = available_cpus()
    busy = cpus * psutil.cpu_percent(interval=1.0) / 100
    quiet = busy <= 0.1 * cpus
    yield Finding(
        "ok" if quiet else "warn",
        f"cores: {cpus} for you, other programs use {busy:.1f}",
        "" if quiet else "figures will be marked as disturbed; end them, or measure later",
    )
    disk_mb = shutil.disk_usage(Path.cwd()).free >> 20
    yield Finding("ok" if disk_mb >= _DISK_MB else "fail", f"disk: {disk_mb} MB are free of {_DISK_MB}")
    usual = {"port": 5000, "http_port": 8000, "grpc_port": 8001, "metrics_port": 8002, "lab_port": 8888}
    free = _free(usual, ())
    taken = ", ".join(str(port) for name, port in usual.items() if free[name] != port)
    yield Finding("ok", f"ports: {taken} are taken, others are used" if taken else "ports: the usual ones")
    has_lab, program = find_spec("jupyterlab"), find_program()
    lacks = "" if has_lab else f"run `{how_to_install('lab')}`"
    yield Finding("ok" if has_lab else "fail", f"JupyterLab: {'there' if has_lab else 'missing'}", lacks)
    yield Finding(
        "ok" if program.is_file() else "warn",
        f"perf_analyzer: {program if program.is_file() else 'not downloaded yet'}",
        "" if program.is_file() else "run `gourmet perf-analyzer -- --help` while there is a network",
    )
