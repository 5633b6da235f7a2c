"""Debian's HAProxy with the configuration that we ship, in front of what a test started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
from support.eventually import eventually
from support.needs import need
from support.web_app import Site

from gourmet.stack.preflight import free_ports

CONFIG: Final = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
_SERVERS: Final = (
    "WEB_1",
    "WEB_2",
    *(f"TRITON_{number}{way}" for number in (1, 2, 3) for way in ("", "_GRPC")),
)


class Haproxy(Site):
    """A master and its worker; the port is that of the web apps."""

    def __init__(self, log: Path) -> None:
        self._program = need("haproxy")
        ports = dict(zip(("WEB", "TRITON", "GRPC", "METRICS"), free_ports(4), strict=True))
        super().__init__(ports["WEB"])
        self.triton, self.grpc, self.metrics = (
            f"127.0.0.1:{ports[name]}" for name in ("TRITON", "GRPC", "METRICS")
        )
        self._listens = {f"LISTEN_{name}": f"127.0.0.1:{port}" for name, port in ports.items()}
        self._log = log

    def start(self, tritons: Sequence[tuple[str, str]] = (), webs: Sequence[Site] = ()) -> None:
        """Before these, Tritons by their addresses for HTTP and gRPC; at the other addresses nobody is."""
        servers = dict.fromkeys(_SERVERS, "127.0.0.1:9")
        for number, (http, grpc) in enumerate(tritons, 1):
            servers |= {f"TRITON_{number}": http, f"TRITON_{number}_GRPC": grpc}
        servers |= {f"WEB_{number}": f"127.0.0.1:{web.port}" for number, web in enumerate(webs, 1)}
        env = {**os.environ, **self._listens, **servers}
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [self._program, "-W", "-f", str(CONFIG)], env=env, stdout=out, stderr=out
            )
        eventually(lambda: bool(self.are_up()))

    def are_up(self) -> dict[str, bool]:
        """Each server by its backend and name; none while nothing listens."""
        site = Site(int(self.metrics.rpartition(":")[2]))
        try:
            text = site.request("GET", "/metrics").body.decode()
        except OSError:
            assert self.process.poll() is None, self._log.read_text()
            return {}
        matches = re.findall(
            r'^haproxy_server_status{proxy="(\w+)",server="(\w+)",state="UP"} (\d)', text, re.M
        )
        return {f"{backend}/{name}": state == "1" for backend, name, state in matches}

    def reload(self) -> None:
        """Have the master read its file again; returns when another worker listens."""
        before = self._workers()
        self.process.send_signal(signal.SIGUSR2)
        eventually(lambda: bool(self._workers() - before))

    def _workers(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)
