"""`gourmet lab`: open the notebooks in JupyterLab, beside a running stack, or start one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import sysconfig
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from gourmet.commands.options import as_options, port_options, url_option
from gourmet.doctor import Examined, Finding, check_configs_in_use
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.lab.exercises import FOLDER_ENV, folder
from gourmet.lab.handing_in import write_page
from gourmet.lab.restoring import restore_models
from gourmet.repository import DEFAULT
from gourmet.served.files import shipped
from gourmet.served.optional import how_to_install
from gourmet.served.signals import set_on_stop
from gourmet.stack.connect import connect
from gourmet.stack.processes import Child
from gourmet.stack.readable_logs import LogPrinter
from gourmet.stack.run_file import stack_at
from gourmet.triton_client.address import Address

_POLL_S: Final = 0.1
_ADDRESS: Final = re.compile(r"http://127\S+")
# Jupyter's lines before its log level applies, and around its address.
_TELLS_NOTHING: Final = re.compile(r"\[[IC] |To access|Or copy and paste|file://|\[W .* is not trusted$")
# `gourmet up` takes less than ten seconds to end, and Jupyter little to end its kernels.
_JUPYTER_TIMEOUT_S: Final = 5.0
_STACK_TIMEOUT_S: Final = 10.0


def _hand_in(ctx: click.Context, _param: click.Parameter, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Write the page before other options look for a running stack: it needs none."""
    if arguments == ("hand-in",):
        echo(f"written: {write_page()}")
        ctx.exit()
    return arguments


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--lab-port", default=8888, type=click.IntRange(1, 65535), help="Port of JupyterLab.")
@port_options(found=True)
@url_option("Triton's address.  [default: --http-port of this machine]", required=False)
@click.option(
    "--fresh", is_flag=True, help="Start again: move the work so far aside, and restore the server."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, is_eager=True, callback=_hand_in)
def lab(lab_port: int, url: str | None, fresh: bool, arguments: tuple[str, ...], **ports: int) -> None:
    """Open the lab's notebooks in JupyterLab, until Ctrl-C; or hand in: `gourmet lab hand-in`.

    The notebooks are copied into runs/lab, where everything of your lab stays. `hand-in` writes one page
    there with your predictions, figures, answers and code.

    The notebooks ask the Triton at --url, or at --http-port of this machine; if none runs there, Triton and
    the web app are started too, and end with the lab. JupyterLab listens on loopback and asks for the token
    that it prints. ARGUMENTS are passed to it, such as --no-browser.
    """
    if find_spec("jupyterlab") is None:
        raise GourmetError(f"JupyterLab is not installed here: run `{how_to_install('lab')}`")
    log, ending, running = LogPrinter(), threading.Event(), {}
    if fresh and folder().exists():
        aside = folder().with_name(f"lab-{time.strftime('%Y%m%d-%H%M%S')}")
        log.say("gourmet", f"the work so far is in {folder().rename(aside)}")
    if url and Address.of(url).scheme != "http":
        raise UsageError(f"the notebook and NVIDIA's tools in it ask over plain HTTP, not {url}")
    chosen, url = url, url or f"127.0.0.1:{ports['http_port']}"
    # Jupyter, started last, ends first: its kernels use the stack.
    with set_on_stop(ending), connect(url) as triton, contextlib.ExitStack() as started:
        if chosen:  # a Triton that was named and does not answer is not replaced
            triton.check_live()
        if chosen or triton.is_live():
            log.say("gourmet", f"the notebook asks the Triton that runs at {url}")
            for finding in _strayed(url, chosen is not None):
                log.say("gourmet", str(finding), "yellow")
            if fresh:
                restore_models(url)
        else:
            log.say("gourmet", f"no Triton at {url}: starting one, with the web app")
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


def _strayed(url: str, named: bool) -> list[Finding]:
    """Report what a killed notebook left changed, and how to put it back."""
    running = stack_at(url)
    folders = tuple(map(Path, running.repositories)) if running else (DEFAULT,)
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
