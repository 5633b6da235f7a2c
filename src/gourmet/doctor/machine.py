"""Check the machine: Python packages, shared memory, ports and GPUs."""

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
from gourmet.serving import preflight
from gourmet.serving.processes import http_ok
from gourmet.serving.triton_server import find_wheel, reachable

# Only a checkout has this file.
_PINS: Final = shipped("requirements/constraints.txt")
# Each instance of a Python model has a region here, which grows with its largest batch: 16 rows of
# food_classifier_onnx are 10 MB in and out. Docker gives 64 MB by default (compose sets 1 GB).
_SHARED_MEMORY: Final = Path("/dev/shm")
_WARN_BELOW_MB: Final = 256
_FAIL_BELOW_MB: Final = 32
_PROBES: Final = {"--port": "/healthz", "--http-port": "/v2/health/live", "--metrics-port": "/metrics"}
# NVIDIA's bulletins 5687 and 5828 (SECURITY.md).
_HOLES: Final = (
    "the wheel's Triton is 2.51 (24.10); published vulnerabilities of its HTTP server and Python backend let "
    "attackers stop it or run code (CVE-2025-23310, 23311, 23319, …)"
)
# The tag of Dockerfile.triton and its compute capabilities, from NVIDIA's release notes of Triton 25.08 (the
# first on CUDA 13) and later. Code for a minor version also runs on later ones of the same major version.
IMAGE: Final = "26.11-py3"
_LOWEST: Final = (7, 5)
_HIGHEST_MAJOR: Final = 12
# 0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0
_GPU: Final = re.compile(r"^(\d+), (.+), (\S+), (\d+)\.(\d+)\s*$", re.MULTILINE)


def triton_wheel(_: Examined) -> Iterator[Finding]:
    """Check Triton's files and libraries, as `gourmet up` does at its start."""
    find_wheel()
    yield ok(
        f"nvidia-pytriton {version('nvidia-pytriton')} is complete, with Python {platform.python_version()}, "
        f"numpy {version('numpy')} and {' '.join(platform.libc_ver())}"
    )


def packages(_: Examined) -> Iterator[Finding]:
    """Compare the installed packages with the tested versions."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", _PINS.read_text(), re.MULTILINE) if _PINS.is_file() else []
    metadata = (package.metadata for package in distributions())  # each access of `metadata` parses it again
    versions = {fields["Name"].lower(): fields["Version"] for fields in metadata}
    installed = [(name, versions[name.lower()], pinned) for name, pinned in pins if name.lower() in versions]
    others = [f"{name} {has} instead of {pinned}" for name, has, pinned in installed if has != pinned]
    if others:
        yield warn(f"tested with other versions: {', '.join(others)}", "run `make setup`")
    else:
        yield ok(f"{len(installed)} pinned packages have the tested versions")


def shared_memory(_: Examined) -> Iterator[Finding]:
    file_system = os.statvfs(_SHARED_MEMORY)
    free_mb = file_system.f_bavail * file_system.f_frsize // 2**20
    free = f"{free_mb} MB are free in {_SHARED_MEMORY}"
    fix = f"remove files there, or `mount -o remount,size=1g {_SHARED_MEMORY}` (Docker: --shm-size=1g)"
    if free_mb < _FAIL_BELOW_MB:
        yield fail(f"{free}, too little for the tensors of Python models", fix)
    elif free_mb < _WARN_BELOW_MB:
        yield warn(f"{free}, which several Python models under load may fill", fix)
    else:
        yield ok(free)


def ports(subject: Examined) -> Iterator[Finding]:
    """Check that each port is free or used by the stack itself, and that Triton's listen on loopback only."""
    for option, port in subject.ports.items():
        # The gRPC port has no URL to probe: it is ours if Triton's HTTP port is.
        probed = option if option in _PROBES else "--http-port"
        try:
            preflight.check_ports(subject.host, {option: port})
            yield ok(f"{port} free")
        except preflight.NotReadyToStart as exc:
            if not http_ok(f"http://{reachable(subject.host)}:{subject.ports[probed]}{_PROBES[probed]}"):
                yield refused(exc)
            elif option != "--port" and (outside := _beyond_loopback(port)):
                yield warn(
                    f"port {port} of Triton is open on {outside}, beyond loopback, without a key for "
                    f"inference; {_HOLES}",
                    "start it with --triton-host 127.0.0.1, or publish containers' ports on 127.0.0.1 only",
                )
            else:
                yield ok(f"{port} held by the running stack")


def _beyond_loopback(port: int) -> str:
    """Return the addresses of this machine, except loopback, on which a program listens at `port`."""
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    addresses = {ipaddress.ip_address(address.partition("%")[0]) for address in listening}
    # gRPC listens on ::ffff:127.0.0.1.
    plain = {getattr(address, "ipv4_mapped", None) or address for address in addresses}
    return ", ".join(sorted(str(address) for address in plain if not address.is_loopback))


def find_gpus() -> list[tuple[str, ...]]:
    """Return index, name, driver and capability (two parts) of each GPU; empty without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        output = " ".join((ran.stdout + ran.stderr).split())[:200]
        rows = [] if ran.returncode else _GPU.findall(ran.stdout)
    except (OSError, subprocess.TimeoutExpired) as exc:
        rows, output = [], str(exc)
    if not rows:
        raise GourmetError(
            f"nvidia-smi is installed but finds no usable GPU ({output}): load or install the driver "
            "(`sudo modprobe nvidia`), or serve on the CPU"
        )
    return rows


def gpus(_: Examined) -> Iterator[Finding]:
    """Check that NVIDIA's image supports each GPU."""
    rows = find_gpus()
    if not rows:
        yield ok("no NVIDIA GPU; everything runs on the CPU")
    for index, name, driver, major, minor in rows:
        gpu = f"GPU {index} ({name}), compute capability {major}.{minor}"
        if (int(major), int(minor)) >= _LOWEST and int(major) <= _HIGHEST_MAJOR:
            yield ok(f"{gpu}, driver {driver}")
        else:
            yield fail(
                f"{gpu}: NVIDIA's image {IMAGE} has kernels for 7.5 to 12.1; it would fail with "
                '"CUDA failure 209: no kernel image is available for execution on the device"',
                "use another image (`docker compose build --build-arg TRITON_TAG=… triton`; 24.10-py3 has "
                "6.0 to 9.0), or serve on the CPU (`gourmet config MODEL --cpu`; containers: "
                "`docker compose -f docker-compose.yaml -f docker-compose.cpu.yaml up`)",
            )
