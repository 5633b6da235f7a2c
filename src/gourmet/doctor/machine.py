"""What the stack stands on: Python's packages, shared memory, ports and GPUs."""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final

import psutil

from gourmet.doctor.findings import Examined, Finding, fail, ok, refused, warn
from gourmet.errors import GourmetError
from gourmet.runtime.files import shipped
from gourmet.serving import preflight, wheel
from gourmet.serving.triton_server import reachable
from gourmet.serving.waiting import http_ok

# A checkout has it; an image and an installed package have none, and nothing to compare.
_PINS: Final = shipped("requirements/constraints.txt")
# Each instance of a Python model holds its region there, which grows with its largest batch: 16 rows of
# food_classifier_onnx are 10 MB in and out. Docker gives 64 MB by default (compose sets 1 GB).
_SHARED_MEMORY: Final = Path("/dev/shm")
_WANTED_MB: Final = 256
_NEEDED_MB: Final = 32
_ASKS: Final = {"--port": "/healthz", "--http-port": "/v2/health/live", "--metrics-port": "/metrics"}
# NVIDIA's bulletins 5687 and 5828 (SECURITY.md).
_HOLES: Final = (
    "the wheel's Triton is 2.51 (24.10), whose HTTP front and Python backend have published holes that let "
    "a stranger end it or run code (CVE-2025-23310, 23311, 23319, …)"
)
# The tag of Dockerfile.triton and its compute capabilities: NVIDIA's release notes of Triton 25.08, the first
# on CUDA 13, and later. Within a major version what is built for one minor runs on the later ones.
IMAGE: Final = "26.11-py3"
_LOWEST: Final = (7, 5)
_HIGHEST_MAJOR: Final = 12
# 0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0
_GPU: Final = re.compile(r"^(\d+), (.+), (\S+), (\d+)\.(\d+)\s*$", re.MULTILINE)


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
    abouts = (package.metadata for package in distributions())  # which is parsed again for each of its fields
    found = {about["Name"].lower(): about["Version"] for about in abouts}
    installed = [(name, found[name.lower()], pinned) for name, pinned in pins if name.lower() in found]
    others = [f"{name} {has} instead of {pinned}" for name, has, pinned in installed if has != pinned]
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
    """Free, or held by the stack itself, Triton's for loopback alone."""
    for option, port in subject.ports.items():
        # gRPC cannot be asked so plainly: it is ours where Triton's HTTP port is.
        asked = option if option in _ASKS else "--http-port"
        try:
            preflight.check_ports(subject.host, {option: port})
            yield ok(f"{port} free")
        except preflight.NotReadyToStart as exc:
            if not http_ok(f"http://{reachable(subject.host)}:{subject.ports[asked]}{_ASKS[asked]}"):
                yield refused(exc)
            elif option != "--port" and (outside := _beyond_loopback(port)):
                yield warn(
                    f"{port} of Triton is open on {outside}, beyond loopback, without a key for inference; "
                    f"{_HOLES}",
                    "start it with --triton-host 127.0.0.1, or publish containers' ports on 127.0.0.1 alone",
                )
            else:
                yield ok(f"{port} held by the running stack")


def _beyond_loopback(port: int) -> str:
    """The addresses of this machine, other than loopback's, on which something listens at `port`."""
    listening = {
        each.laddr.ip
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    }
    found = {ipaddress.ip_address(address.partition("%")[0]) for address in listening}
    plain = {getattr(each, "ipv4_mapped", None) or each for each in found}  # ::ffff:127.0.0.1, as gRPC's
    return ", ".join(sorted(str(each) for each in plain if not each.is_loopback))


def find_gpus() -> list[tuple[str, ...]]:
    """Index, name, driver and the two parts of its capability for every GPU; none without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        words = " ".join((ran.stdout + ran.stderr).split())[:200]
        found = [] if ran.returncode else _GPU.findall(ran.stdout)
    except (OSError, subprocess.TimeoutExpired) as exc:
        found, words = [], str(exc)
    if not found:
        raise GourmetError(
            f"nvidia-smi is there and finds no usable GPU ({words}): load or install the driver "
            "(`sudo modprobe nvidia`), or serve on the CPU"
        )
    return found


def gpus(_: Examined) -> Iterator[Finding]:
    """Every GPU; torch and ONNX Runtime of `gourmet up` say themselves what they cannot run on."""
    found = find_gpus()
    if not found:
        yield ok("no NVIDIA GPU; everything runs on the CPU")
    for index, name, driver, major, minor in found:
        gpu = f"GPU {index} ({name}), compute capability {major}.{minor}"
        if (int(major), int(minor)) >= _LOWEST and int(major) <= _HIGHEST_MAJOR:
            yield ok(f"{gpu}, driver {driver}")
        else:
            yield fail(
                f"{gpu}: NVIDIA's image {IMAGE} carries kernels for 7.5 to 12.1; it would end in "
                '"CUDA failure 209: no kernel image is available for execution on the device"',
                "build on another (`docker compose build --build-arg TRITON_TAG=… triton`; 24.10-py3 has 6.0 "
                "to 9.0), or serve on the CPU (`gourmet config MODEL --cpu`; containers: "
                "`docker compose -f docker-compose.yaml -f docker-compose.cpu.yaml up`)",
            )
