"""Files by which a user's programs find the Tritons that run here: where each listens, and its keys.

There is one for each Triton, in a folder that only its user can read. It is locked for as long as the Triton
runs, which the kernel undoes however that ends: a file that anyone can lock was left by a Triton that was
killed, and is removed by the next program that looks.
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

from gourmet.client.address import LOOPBACK
from gourmet.errors import GourmetError, UsageError

FOLDER_ENV: Final = "GOURMET_KEYS"
DEFAULT_URL: Final = "localhost:8000"


@dataclass(frozen=True)
class RunningStack:
    """A stack that `gourmet up` keeps running; addresses are host:port, those of pages are URLs."""

    pid: int
    http_url: str
    grpc_url: str
    metrics_url: str
    web_url: str  # empty with --triton-only
    repositories: list[str]
    model_control: str

    def serves(self, repository: Path) -> bool:
        """Whether a model that changes in `repository` can be loaded into this stack."""
        return self.model_control == "explicit" and str(repository.resolve()) in self.repositories


@contextlib.contextmanager
def kept(ports: tuple[int, ...], content: Mapping[str, Any]) -> Iterator[Path]:
    """Keep `content` in the file of the Triton at `ports` (the first one names it) while it runs."""
    contents()  # which removes those that Tritons left which were killed
    path = _safe_folder() / f"triton-{ports[0]}.json"
    number, unfinished = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(number, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"ports": ports, **content}, file)
        file.flush()
        Path(unfinished).replace(path)  # in place only once it is locked: what is not locked gets removed
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another Triton's file is in it
                path.parent.rmdir()


def contents() -> list[dict[str, Any]]:
    """What the files of the Tritons that run say; those of others are passed over, and those left removed."""
    found = []
    for path in sorted(path for folder in _folders() for path in folder.glob("triton-*.json")):
        with contextlib.suppress(OSError):  # one may end, and its file with it
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
            with os.fdopen(number) as file:
                about = os.fstat(number)
                if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
                    continue
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if os.path.samestat(path.lstat(), about):  # not that of a Triton which starts now
                        path.unlink()
                except BlockingIOError:
                    found.append(json.load(file))
    return found


def running_stacks() -> list[RunningStack]:
    """The stacks of `gourmet up` that run on this machine."""
    return [RunningStack(**content["stack"]) for content in contents() if "stack" in content]


def running_stack() -> RunningStack | None:
    """The stack that a verb means which was given no address; None where none runs."""
    found = running_stacks()
    usual = [stack for stack in found if stack.http_url.endswith(":8000")] or found
    if len(usual) > 1:
        addresses = ", ".join(stack.http_url for stack in found)
        raise UsageError(f"{len(found)} stacks run here, at {addresses}: choose one with --url")
    return usual[0] if usual else None


def found_url() -> str:
    """What to ask where no address was given: the running stack's, or the usual one of this machine."""
    stack = running_stack()
    return stack.http_url if stack else DEFAULT_URL


def stack_at(url: str) -> RunningStack | None:
    """The stack of `gourmet up` here with a Triton at `url`, by HTTP or gRPC."""
    place = url.rpartition("://")[2]
    host, _, port = place.rpartition(":")
    for stack in running_stacks():
        for own in (stack.http_url, stack.grpc_url):
            if own == place or (host in LOOPBACK and own.endswith(f":{port}")):
                return stack
    return None


def _usual_folder() -> Path:
    if named := os.environ.get(FOLDER_ENV):
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime, "gourmet")
    return Path(tempfile.gettempdir(), f"gourmet-{os.getuid()}")


def _folders() -> list[Path]:
    """This user's folders: the usual one, and any that was made where something of another's has its name."""
    usual = _usual_folder()
    others = [] if os.environ.get(FOLDER_ENV) else sorted(usual.parent.glob(f"{usual.name}-run-*"))
    return [path for path in (usual, *others) if _is_own(path)]


def _is_own(path: Path) -> bool:
    with contextlib.suppress(OSError):
        about = path.lstat()
        return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    return False


def _safe_folder() -> Path:
    """The folder to write to, made if need be; raise unless it is this user's alone."""
    usual = _usual_folder()
    with contextlib.suppress(FileExistsError):
        usual.mkdir(mode=0o700, parents=True)
    folder = next(iter(_folders()), None)
    if not folder and not os.environ.get(FOLDER_ENV):
        return Path(tempfile.mkdtemp(prefix=f"{usual.name}-run-", dir=usual.parent))
    if not folder or folder.stat().st_mode & 0o022:
        raise GourmetError(
            f"{folder or usual} is where Triton's keys are kept, and others can write to it or own it: "
            f"remove it, or name a folder of your own in {FOLDER_ENV}"
        )
    return folder
