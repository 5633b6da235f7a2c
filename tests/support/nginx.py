"""The containers' proxy, as Debian's nginx, in front of an app of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.needs import need

from gourmet.stack.preflight import free_ports

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Nginx:
    port: int
    of_observers: int
    process: subprocess.Popen[bytes]


def connect(port: int, source: str, *, receive_buffer: int = 0) -> socket.socket:
    """A connection from an address of loopback."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    return connection


@contextlib.contextmanager
def nginx(app_port: int, folder: Path, tls_port: str = "", timeout: str = "10s") -> Iterator[Nginx]:
    """Debian's nginx with the containers' configuration, and what lies in `server.d` of the folder.

    `timeout` stands in place of the ten seconds that heads, bodies and readers have.
    """
    program = need("nginx", "nginx-light")
    port, of_observers = free_ports(2)
    # As start.sh writes it.
    (folder / "app.conf").write_text(f'set $app 127.0.0.1:{app_port};\nset $tls_port "{tls_port}";\n')
    config = (ROOT / "proxy" / "nginx.conf").read_text()
    for theirs, ours in (
        ("listen 8080", f"listen 127.0.0.1:{port}"),
        ("listen 8081", f"listen 127.0.0.1:{of_observers}"),
        ("/tmp/", f"{folder}/"),
        ("/etc/nginx/", f"{folder}/"),
        ("_timeout 10s", f"_timeout {timeout}"),
    ):
        assert theirs in config
        config = config.replace(theirs, ours)
    if os.geteuid() == 0:  # or nginx becomes another user, which the folder of the tests is closed to
        config = f"user root;\n{config}"
    (folder / "nginx.conf").write_text(config)
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    with (folder / "log").open("ab") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                assert process.poll() is None, (folder / "log").read_text()
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.05)
            yield Nginx(port, of_observers, process)
        finally:
            process.terminate()
