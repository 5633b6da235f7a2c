"""What the stack stands on: Python's packages, shared memory and ports."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final

from gourmet.doctor.findings import Examined, Finding, fail, ok, refused, warn
from gourmet.import_guard import CHECKOUT
from gourmet.serving import preflight, wheel
from gourmet.serving.triton_server import reachable
from gourmet.serving.waiting import http_ok

# It lies beside src/ in a checkout; an installed image has none, and nothing to compare.
_PINS: Final = CHECKOUT / "requirements" / "constraints.txt"
# Each instance of a Python model holds its region there, which grows with its largest batch: 16 rows of
# food_classifier_onnx are 10 MB in and out. Docker gives 64 MB by default (compose sets 1 GB).
_SHARED_MEMORY: Final = Path("/dev/shm")
_WANTED_MB: Final = 256
_NEEDED_MB: Final = 32
_ASKS: Final = {"--port": "/healthz", "--http-port": "/v2/health/live", "--metrics-port": "/metrics"}


def triton_wheel(_: Examined) -> Iterator[Finding]:
    """What `gourmet up` asks before it starts: Python, its library, the C library, numpy, Triton's files."""
    wheel.find_wheel()
    yield ok(
        f"nvidia-pytriton {version('nvidia-pytriton')} is whole, with Python {platform.python_version()}, "
        f"numpy {version('numpy')} and {' '.join(platform.libc_ver())}"
    )


def packages(_: Examined) -> Iterator[Finding]:
    """The installed packages against the versions that this was tested with."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", _PINS.read_text(), re.MULTILINE) if _PINS.is_file() else []
    found = {package.name.lower(): package.version for package in distributions()}
    installed = [(name, found[name.lower()], wanted) for name, wanted in pins if name.lower() in found]
    others = [f"{name} {has} instead of {wanted}" for name, has, wanted in installed if has != wanted]
    if others:
        yield warn(f"tested with other versions: {', '.join(others)}", "run `make setup`")
    else:
        yield ok(f"{len(installed)} pinned packages are as tested")


def shared_memory(_: Examined) -> Iterator[Finding]:
    found = os.statvfs(_SHARED_MEMORY)
    free_mb = found.f_bavail * found.f_frsize // 2**20
    says = f"{free_mb} MB are free in {_SHARED_MEMORY}"
    larger = f"remove what lies there, or `mount -o remount,size=1g {_SHARED_MEMORY}` (Docker: --shm-size=1g)"
    if free_mb < _NEEDED_MB:
        yield fail(f"{says}, and Python models hand their tensors over there", larger)
    elif free_mb < _WANTED_MB:
        yield warn(f"{says}, which several Python models under load may fill", larger)
    else:
        yield ok(says)


def ports(subject: Examined) -> Iterator[Finding]:
    """Free, or held by the stack itself."""
    states: dict[str, list[str]] = {"free": [], "held by the running stack": []}
    for option, port in subject.ports.items():
        try:
            preflight.check_ports(subject.host, {option: port})
        except preflight.NotReadyToStart as exc:
            # gRPC cannot be asked so plainly: it is ours where Triton's HTTP port is.
            asked = option if option in _ASKS else "--http-port"
            if http_ok(f"http://{reachable(subject.host)}:{subject.ports[asked]}{_ASKS[asked]}"):
                states["held by the running stack"].append(str(port))
            else:
                yield refused(exc)
        else:
            states["free"].append(str(port))
    yield ok(", ".join(f"{' '.join(numbers)} {state}" for state, numbers in states.items() if numbers))
