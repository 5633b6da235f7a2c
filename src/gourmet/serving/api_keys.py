"""Keys for those of Triton's calls that change the server.

Anyone who may load a model may run a program on the machine, and anyone who may register shared memory
may read and write other processes' memory. Triton answers these calls only with a header that has the
right value:

    gourmet-admin-key    load, unload and list models, logging, trace
    gourmet-memory-key   shared memory, for which the web app has a key of its own

Everything else (inference, metadata, configs, health, statistics) stays open to anyone who reaches the
ports, which are those of loopback. Each start makes new keys. The verbs of this project find them in the
environment or in the stack's run file, and `connect` sends them.

    python3 -m gourmet.serving.api_keys tritonserver …       # the same for a Triton that we do not start
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from gourmet.client.address import LOOPBACK, Address
from gourmet.client.keys import ADMIN_ENV, ADMIN_HEADER, MEMORY_ENV, MEMORY_HEADER
from gourmet.errors import GourmetError
from gourmet.serving import run_file

_LOCKED: Final = {ADMIN_HEADER: "model-repository,logging,trace", MEMORY_HEADER: "shared-memory"}
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{16,}")


@dataclass(frozen=True)
class Keys:
    """The two keys of one Triton; a log is not the place for them."""

    admin: str = field(repr=False)
    memory: str = field(repr=False)

    @classmethod
    def made(cls, env: Mapping[str, str]) -> Keys:
        """Those that the environment gives, or else new ones."""
        made = []
        for name in (ADMIN_ENV, MEMORY_ENV):
            made.append(env.get(name) or secrets.token_urlsafe(24))
            if not _KEY.fullmatch(made[-1]):
                raise GourmetError(
                    f"{name} is too short or has odd characters: use at least 16 letters, digits, _ . and -, "
                    "such as from `openssl rand -hex 24`"
                )
        return cls(*made)

    def headers(self, *, grpc: bool = False) -> dict[str, str]:
        """What has to go with a request to one of the locked calls."""
        prefix = "triton-grpc-protocol-" if grpc else ""
        return {f"{prefix}{ADMIN_HEADER}": self.admin, f"{prefix}{MEMORY_HEADER}": self.memory}

    def arguments(self) -> list[str]:
        """What makes a tritonserver lock the calls."""
        return [
            f"--{protocol}={_LOCKED[header]}:{header}={key}"
            for protocol in ("http-restricted-api", "grpc-restricted-protocol")
            for header, key in self.headers().items()
        ]


def hide(pid: int, keys: Keys) -> None:
    """Overwrite the keys in the command line of our child `pid`, which every user of the machine can read.

    Triton takes them as arguments only. It has copied them when it starts to write its log; the kernel
    lets a parent write to its child's memory, and where it does not, they stay to be seen.
    """
    with contextlib.suppress(OSError):
        begin, end = map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[45:47])
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            arguments = memory.read(end - begin)
            for key in (keys.admin.encode(), keys.memory.encode()):
                arguments = arguments.replace(key, b"*" * len(key))
            memory.seek(begin)
            memory.write(arguments)


def headers_for(url: str, *, grpc: bool = False) -> dict[str, str]:
    """What to send along to the Triton at `url` (host:port); nothing where no keys are known for it."""
    admin, memory = os.environ.get(ADMIN_ENV, ""), os.environ.get(MEMORY_ENV, "")
    host, _, port = url.rpartition("://")[2].rpartition(":")
    if (admin or memory) and not Address.of(url).may_have(ADMIN_ENV):
        admin = memory = ""
    # A file says what a port of this machine wants; other hosts are not sent it, unless the folder was named.
    named = bool(os.environ.get(run_file.FOLDER_ENV)) and Address.of(url).is_named
    if not (admin or memory) and (host in LOOPBACK or named):
        for found in run_file.contents():
            if port in map(str, found["ports"]) and "admin" in found:
                admin, memory = found["admin"], found["memory"]
    return Keys(admin, memory).headers(grpc=grpc) if admin or memory else {}


def _start_locked(command: Sequence[str]) -> None:
    """Become `command` with the locks on, leaving the keys in the folder; for a container's start."""
    keys = Keys.made(os.environ)
    with run_file.kept((8000, 8001), asdict(keys)):
        os.execvp(command[0], [*command, *keys.arguments()])


if __name__ == "__main__":
    _start_locked(sys.argv[1:])
