"""Shared memory, ports and the rights of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gourmet.doctor.findings import Examined, Finding, fail, ok, refused, warn
from gourmet.serving import preflight
from gourmet.serving.triton_server import reachable
from gourmet.serving.waiting import http_ok

# Each instance of a Python model holds its region there, which grows with its largest batch: 16 rows of
# food_classifier_onnx are 10 MB in and out. Docker gives 64 MB by default (compose sets 1 GB).
_WANTED_MB: Final = 256
_NEEDED_MB: Final = 32
# The user that the containers run as.
_CONTAINER_USER: Final = 1000
_ASKS: Final = {"--port": "/healthz", "--http-port": "/v2/health/live", "--metrics-port": "/metrics"}


def shared_memory(subject: Examined) -> Iterator[Finding]:
    found = os.statvfs(subject.shared_memory)
    free_mb = found.f_bavail * found.f_frsize // 2**20
    says = f"{free_mb} MB are free in {subject.shared_memory}"
    larger = (
        f"remove what lies there, or give it more (Docker: --shm-size=1g; `mount -o remount,size=1g "
        f"{subject.shared_memory}`)"
    )
    if free_mb < _NEEDED_MB:
        yield fail(f"{says}, and Python models hand their tensors over there", larger)
    elif free_mb < _WANTED_MB:
        yield warn(f"{says}, which several Python models under load may fill", larger)
    else:
        yield ok(says)


def ports(subject: Examined) -> Iterator[Finding]:
    """Free, or held by the stack itself."""
    held = []
    for option, port in subject.ports.items():
        try:
            preflight.check_ports(subject.host, {option: port})
        except preflight.NotReadyToStart as exc:
            if not _is_ours(option, subject.host, subject.ports):
                yield refused(exc)
                continue
            held.append(port)
    if len(set(subject.ports.values())) < len(subject.ports):
        preflight.check_ports(subject.host, subject.ports)
    free = [port for port in subject.ports.values() if port not in held]
    says = [f"{_listed(free)} free"] if free else []
    says += [f"{_listed(held)} held by the running stack"] if held else []
    yield ok(", ".join(says))


def _is_ours(option: str, host: str, all_ports: Mapping[str, int]) -> bool:
    # gRPC cannot be asked so plainly: it is ours where Triton's HTTP port is.
    asked = option if option in _ASKS else "--http-port"
    return http_ok(f"http://{reachable(host)}:{all_ports[asked]}{_ASKS[asked]}")


def _listed(numbers: list[int]) -> str:
    return " ".join(str(number) for number in numbers)


def files(subject: Examined) -> Iterator[Finding]:
    """Whether this user, and that of the containers, can read the model repositories."""
    for repository in subject.repositories:
        paths = [repository, *sorted(repository.rglob("*"))]
        if mine := [path for path in paths if not os.access(path, _needs(path), effective_ids=True)]:
            yield fail(f"{_first(mine)} cannot be read by this user", f"chmod -R u+rX {repository}")
        elif theirs := [path for path in paths if not _readable_in_containers(path)]:
            yield warn(
                f"{_first(theirs)} cannot be read by user {_CONTAINER_USER}, who serves in the containers",
                f"chmod -R a+rX {repository}",
            )
        else:
            yield ok(f"everything in {repository} can be read")


def _needs(path: Path) -> int:
    return os.R_OK | os.X_OK if path.is_dir() else os.R_OK


def _readable_in_containers(path: Path) -> bool:
    found, bits = path.stat(), _needs(path)  # os.R_OK and os.X_OK are the bits of a file's mode
    owns = found.st_uid == _CONTAINER_USER
    return found.st_mode & bits == bits or (owns and found.st_mode >> 6 & bits == bits)


def _first(paths: list[Path]) -> str:
    return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
