"""A key for the calls that change Triton.

Loading a model runs a program on the machine, and registering shared memory gives access to the memory of
other processes. Triton answers these calls, and those for logs and traces, only with the right value in the
header `gourmet-admin-key`.

All other calls (inference, metadata, configs, health, statistics) are open to anyone who reaches the ports,
which are those of loopback. Each start makes a new key. The verbs read it from the environment or from the
stack's run file, and `connect` sends it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.stack import run_file
from gourmet.stack.processes import Child, LineSink
from gourmet.triton_client.address import ADMIN_ENV, ADMIN_HEADER, Address

_LOCKED: Final = "model-repository,logging,trace,shared-memory"
# A line of Triton's own log, such as `I1121 02:32:03.186922 6125 server.cc:674]`.
_LOG_LINE: Final = re.compile(r"[IWEF]\d{4} \d\d:")
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{16,}")


def make_key(env: Mapping[str, str]) -> str:
    """Return the key from the environment, or else a new one."""
    key = env.get(ADMIN_ENV) or secrets.token_urlsafe(24)
    if not _KEY.fullmatch(key):
        raise GourmetError(
            f"{ADMIN_ENV} is too short or has other characters than letters, digits, _ . and -: use at least "
            "16 of them, such as from `openssl rand -hex 24`"
        )
    return key


def headers(key: str, *, grpc: bool = False) -> dict[str, str]:
    """Return the headers for the locked calls."""
    return {f"{'triton-grpc-protocol-' if grpc else ''}{ADMIN_HEADER}": key}


def arguments(key: str) -> list[str]:
    """Return tritonserver's arguments that lock the calls."""
    options = ("http-restricted-api", "grpc-restricted-protocol")
    return [f"--{option}={_LOCKED}:{ADMIN_HEADER}={key}" for option in options]


def hide(pid: int, key: str) -> None:
    """Overwrite the key in the command line of our child `pid`, which every user of the machine can read.

    Triton accepts the key only as an argument, and has copied it when it writes its first log line. The
    kernel lets a parent write to its child's memory; if it does not, the key stays visible.
    """
    with contextlib.suppress(OSError):
        begin, end = map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[45:47])
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            line = memory.read(end - begin)
            memory.seek(begin)
            memory.write(line.replace(key.encode(), b"*" * len(key)))


class LockedTriton(Child):
    """A Triton with its key as an argument, which is hidden at its first log line."""

    def __init__(self, command: Sequence[str], key: str, *, on_line: LineSink, **options: Any) -> None:
        """Start the process with the options of a Child; without a key, nothing is locked."""
        self._key = key
        self._on_line = on_line
        super().__init__([*command, *(arguments(key) if key else ())], on_line=self._pass_line, **options)

    def _pass_line(self, line: str) -> None:
        if self._key and _LOG_LINE.match(line):
            hide(self.pid, self._key)
            self._key = ""
        self._on_line(line)


def headers_for(url: str, *, grpc: bool = False) -> dict[str, str]:
    """Return the headers for the Triton at `url` (host:port), empty if no key is known for it."""
    key = os.environ.get(ADMIN_ENV, "")
    if key and not Address.of(url).may_have(ADMIN_ENV):
        key = ""
    key = key or run_file.content_for(url).get("admin", "")
    return headers(key, grpc=grpc) if key else {}
