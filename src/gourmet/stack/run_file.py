"""Run files: a user's programs read in them the addresses and keys of the Tritons that run on this machine.

Each Triton has one, in a folder that only its user can read. The file is locked while the Triton runs; the
kernel removes the lock when it ends in any way. A file without a lock was left by a killed Triton, and the
next program that reads the folder removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError, UsageError
from gourmet.triton_client.address import LOOPBACK, Address

FOLDER_ENV: Final = "GOURMET_KEYS"
DEFAULT_URL: Final = "localhost:8000"


@dataclass(frozen=True)
class RunningStack:
    """A running `gourmet up`. Triton's HTTP and gRPC addresses are host:port; the others are URLs."""

    pid: int
    http_url: str
    grpc_url: str
    metrics_url: str
    web_url: str  # empty with --triton-only
    repositories: list[str]
    model_control: str

    def uses(self, port: int) -> bool:
        """Return whether one of this stack's servers listens on the port."""
        addresses = self.http_url, self.grpc_url, self.metrics_url.removesuffix("/metrics"), self.web_url
        return any(address.endswith(f":{port}") for address in addresses)

    def serves(self, repository: Path) -> bool:
        """Return whether this stack can load changed models of `repository`."""
        return self.model_control == "explicit" and str(repository.resolve()) in self.repositories


@contextlib.contextmanager
def run_file_for(ports: tuple[int, ...], content: Mapping[str, Any]) -> Iterator[Path]:
    """Write `content` into the run file of the Triton at `ports`, and keep it within the block."""
    contents()  # removes the files of killed Tritons
    path = _safe_folder() / f"triton-{ports[0]}.json"
    number, unfinished = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(number, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"ports": ports, **content}, file)
        file.flush()
        Path(unfinished).replace(path)  # only now, since other programs remove an unlocked file
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder has the file of another Triton
                path.parent.rmdir()


def contents() -> list[dict[str, Any]]:
    """Return the contents of this user's run files, and remove the files of killed Tritons."""
    running = []
    for path in sorted(_folder().glob("triton-*.json")) if _is_own(_folder()) else ():
        with contextlib.suppress(OSError):  # its Triton may end at this moment
            number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            with os.fdopen(number) as file:
                status = os.fstat(number)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                    continue
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if os.path.samestat(path.lstat(), status):  # a starting Triton may have replaced it
                        path.unlink()
                except BlockingIOError:
                    running.append(json.load(file))
    return running


def content_for(url: str) -> dict[str, Any]:
    """Return the run file of the Triton at the HTTP or gRPC address `url`, empty if there is none.

    Run files are for ports of this machine. Those of other hosts are looked up only if the folder was set.
    """
    at = Address.of(url)
    if at.host in LOOPBACK or (os.environ.get(FOLDER_ENV) and at.is_named):
        for content in contents():
            if at.port in content["ports"]:
                return content
    return {}


def running_stacks() -> list[RunningStack]:
    """Return this user's running `gourmet up` stacks on this machine."""
    return [RunningStack(**content["stack"]) for content in contents() if "stack" in content]


def running_stack() -> RunningStack | None:
    """Return the stack for a verb without --url: the one on port 8000, or the only one; None if none runs."""
    stacks = running_stacks()
    candidates = [stack for stack in stacks if stack.http_url.endswith(":8000")] or stacks
    if len(candidates) > 1:
        addresses = ", ".join(stack.http_url for stack in stacks)
        raise UsageError(f"{len(stacks)} stacks run here, at {addresses}: choose one with --url")
    return candidates[0] if candidates else None


def found_url() -> str:
    """Return the address for a verb without --url: the running stack's, or localhost:8000."""
    stack = running_stack()
    return stack.http_url if stack else DEFAULT_URL


def stack_at(url: str) -> RunningStack | None:
    """Return the stack on this machine whose Triton has the HTTP or gRPC address `url`."""
    address = url.rpartition("://")[2]
    host, _, port = address.rpartition(":")
    for stack in running_stacks():
        for own in (stack.http_url, stack.grpc_url):
            if own == address or (host in LOOPBACK and own.endswith(f":{port}")):
                return stack
    return None


def _folder() -> Path:
    if folder := os.environ.get(FOLDER_ENV):
        return Path(folder)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime, "gourmet")
    return Path(tempfile.gettempdir(), f"gourmet-{os.getuid()}")


def _is_own(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _safe_folder() -> Path:
    """Return the folder to write to; create it if necessary. Raise GourmetError if others may write it."""
    folder = _folder()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    if not _is_own(folder) or folder.stat().st_mode & 0o022:
        raise GourmetError(
            f"{folder} is for Triton's keys, but others own it or may write to it: "
            f"remove it, or name a folder of your own in {FOLDER_ENV}"
        )
    return folder
