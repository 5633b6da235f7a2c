"""JupyterLab beside a running stack; the stack is started along with it where none runs."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.runtime.signals import stops_set
from gourmet.serving.client import TritonUnreachable, triton
from gourmet.serving.processes import Child, DiedWhileStarting, LineSink
from gourmet.serving.readable_logs import LogPrinter
from gourmet.serving.waiting import http_ok

NOTEBOOK: Final = Path(__file__).resolve().parents[3] / "notebooks" / "triton.ipynb"
_POLL_S: Final = 0.1
_ADDRESS: Final = re.compile(r"http://127\S+")
# What Jupyter says before it heard which level to say, and around its address.
_TELLS_NOTHING: Final = re.compile(r"\[[IC] |To access|Or copy and paste|file://|\[W .* is not trusted$")
# `gourmet up` takes less than ten seconds to end, and Jupyter little to end its kernels.
_JUPYTER_TIMEOUT_S: Final = 5.0
_STACK_TIMEOUT_S: Final = 10.0


class NoLab(GourmetError):
    """JupyterLab, or the notebook for it, is not here."""


class OpenLab:
    """JupyterLab and, where no Triton was running, a `gourmet up`; both end together."""

    def __init__(self, ports: Mapping[str, int], log: LogPrinter, raw: LineSink) -> None:
        self._ports, self._log, self._raw = ports, log, raw
        self._ending = threading.Event()
        self._running: dict[str, Child] = {}

    def run(self, lab_port: int, arguments: Sequence[str]) -> None:
        """Return after Ctrl-C, or once one of the two ended by itself."""
        if find_spec("jupyterlab") is None:
            raise NoLab("JupyterLab is not installed here: `make lab` installs it, and opens the notebook")
        if not NOTEBOOK.is_file():
            raise NoLab(f"no notebook found at {NOTEBOOK}: run this in a checkout")
        with stops_set(self._ending):
            try:
                url = self._find_or_start_triton()
                if not self._ending.is_set():
                    self._running["JupyterLab"] = self._start_jupyter(url, lab_port, arguments)
                self._wait()
            finally:
                for name in reversed(self._running):  # Jupyter first, whose kernels use the other
                    self._running[name].stop(_JUPYTER_TIMEOUT_S if name == "JupyterLab" else _STACK_TIMEOUT_S)

    def _find_or_start_triton(self) -> str:
        chosen = os.environ.get("TRITON_SERVER_URL")
        url = chosen or f"127.0.0.1:{self._ports['http_port']}"
        try:
            with triton(url) as client:
                client.get_server_metadata()
        except TritonUnreachable:
            if chosen:
                raise
            self._say(f"no Triton at {url}: starting one, with the web app")
            self._start_stack()
        else:
            self._say(f"the notebook asks the Triton that runs at {url}")
        return url

    def _start_stack(self) -> None:
        ports = [f"--{name.replace('_', '-')}={number}" for name, number in self._ports.items()]
        command = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", *ports]
        stack = Child(command, env=os.environ, cwd=Path.cwd(), on_line=self._raw)
        self._running["gourmet up"] = stack
        while not self._ending.is_set() and not http_ok(f"http://127.0.0.1:{self._ports['port']}/readyz"):
            if (status := stack.exit_status()) is not None:
                raise DiedWhileStarting("gourmet up", status)
            self._ending.wait(_POLL_S)

    def _start_jupyter(self, url: str, port: int, arguments: Sequence[str]) -> Child:
        scripts = sysconfig.get_path("scripts")
        env = {
            **os.environ,
            "TRITON_SERVER_URL": url,
            # For the cells that call `gourmet`, and the terminals of the lab.
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        }
        command = [
            *(sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={NOTEBOOK.parent}"),
            *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
            *(f"--LabApp.default_url=/lab/tree/{NOTEBOOK.name}", "--log-level=WARN"),
            # It would ask PyPI for news of itself.
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            # Jupyter refuses root unless told; here it is on loopback, behind its token.
            *(("--allow-root",) if os.geteuid() == 0 else ()),
            *arguments,
        ]
        return Child(command, env=env, cwd=NOTEBOOK.parent, on_line=self._jupyter_line)

    def _jupyter_line(self, line: str) -> None:
        if address := _ADDRESS.search(line):
            self._say(f"the notebook {address[0]}", "green")
            self._say("Ctrl-C ends the lab", "green")
        elif line.strip() and not _TELLS_NOTHING.match(line.strip()):
            self._log.say("jupyter", line.strip())

    def _wait(self) -> None:
        while not self._ending.wait(_POLL_S):
            for name, child in self._running.items():
                if (status := child.exit_status()) is not None:
                    self._say(f"{name} ended with status {status}")
                    return

    def _say(self, text: str, colour: str | None = None) -> None:
        self._log.say("gourmet", text, colour)
