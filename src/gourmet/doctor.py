"""The checks of `gourmet doctor`: a line for each finding, with the next step.

First come the checks of this machine, then those of the models on disk, Triton and the web app.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final, Literal

import psutil

from gourmet.errors import GourmetError
from gourmet.repository import config_change
from gourmet.repository.lock import UNDO_FILE
from gourmet.repository.models import RepositoryError, models_in, read_config
from gourmet.repository.versions import version_numbers
from gourmet.served import manifest
from gourmet.served.files import shipped
from gourmet.served.instances import instance_count
from gourmet.stack import preflight
from gourmet.stack.connect import ask_sample, connect
from gourmet.stack.processes import http_ok
from gourmet.stack.triton_server import find_wheel, reachable
from gourmet.systems import registry
from gourmet.triton_client.errors import TritonUnreachable
from gourmet.triton_client.model_config import as_json, summary

# Only a checkout has this file.
_PINS: Final = shipped("requirements/constraints.txt")
# Each instance of a Python model has a region here, which grows with its largest batch: 16 rows of
# food_classifier_onnx are 10 MB in and out. Docker gives 64 MB by default (compose sets 1 GB).
_SHARED_MEMORY: Final = Path("/dev/shm")
_WARN_BELOW_MB: Final = 256
_FAIL_BELOW_MB: Final = 32
_PROBES: Final = {"--port": "/healthz", "--http-port": "/v2/health/live", "--metrics-port": "/metrics"}
# A busy machine may be late.
_PROBE_WITHIN_S: Final = 10.0
# NVIDIA's bulletins 5687 and 5828 (SECURITY.md).
_HOLES: Final = (
    "the wheel's Triton is 2.51 (24.10); published vulnerabilities of its HTTP server and Python backend let "
    "attackers stop it or run code (CVE-2025-23310, 23311, 23319, …)"
)
# The compute capabilities of NVIDIA's image, from the release notes of Triton 25.08 (the first on CUDA 13)
# and later. Code for a minor version also runs on later ones of the same major version.
_LOWEST: Final = (7, 5)
_HIGHEST_MAJOR: Final = 12
# 0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0
_GPU: Final = re.compile(r"^(\d+), (.+), (\S+), (\d+)\.(\d+)\s*$", re.MULTILINE)
# The app asks its model before it answers.
_READY_WITHIN_S: Final = 30.0


Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line: the cause and, unless it is ok, the fix."""

    level: Level
    cause: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.cause}: {self.fix}" if self.fix else self.cause


@dataclass(frozen=True)
class Examined:
    """The stack that is checked."""

    repositories: tuple[Path, ...]
    host: str
    ports: Mapping[str, int]  # by the option of `gourmet up` that sets the port
    url: str
    must_run: bool  # a missing server is a fault, since the user gave its address
    environment: Mapping[str, str]


ok = partial(Finding, "ok")
warn = partial(Finding, "warn")
fail = partial(Finding, "fail")


def refused(exc: GourmetError) -> Finding:
    """Return the finding of an error, whose message is the cause, a colon and the next step."""
    cause, _, fix = str(exc).partition(": ")
    return fail(cause, fix)


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
            url = f"http://{reachable(subject.host)}:{subject.ports[probed]}{_PROBES[probed]}"
            if not http_ok(url, _PROBE_WITHIN_S):
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
                f"{gpu}: NVIDIA's image has kernels for 7.5 to 12.1; it would fail with "
                '"CUDA failure 209: no kernel image is available for execution on the device"',
                "use another image (docs/gpu.md), or serve on the CPU (`gourmet config MODEL --cpu`; "
                "containers: `docker compose -f docker-compose.yaml -f docker-compose.cpu.yaml up`)",
            )


def configs(subject: Examined) -> Iterator[Finding]:
    """Check that every config can be read. Triton checks models against their configs when it loads them."""
    names = preflight.check_repositories(subject.repositories)
    yield ok(f"{len(names)} models: {', '.join(names)}")
    for model in models_in(subject.repositories):
        try:
            config = as_json(read_config(model))
        except RepositoryError as exc:
            yield refused(exc)
            continue
        if "default_queue_policy" in config.get("dynamic_batching", {}) and instance_count(config) < 2:
            yield warn(
                f"{model.name} has a queue policy and one instance, so some requests wait half a second",
                "remove the policy from its config, or give it two instances (docs/measuring.md)",
            )


def systems(_: Examined) -> Iterator[Finding]:
    """Check that every system can be used: the pages do not show broken ones."""
    for name, reason in registry.broken().items():
        yield fail(f"the system {name} is broken ({reason})", f"correct it, or `gourmet remove {name}`")
    yield ok(f"{len(registry.load_all())} systems: {', '.join(registry.load_all())}")


def manifests(subject: Examined) -> Iterator[Finding]:
    """Check that the files of each version are the deployed ones."""
    verified: list[str] = []
    without: list[str] = []
    for path in (folder / UNDO_FILE for folder in subject.repositories):
        if path.exists():
            yield warn(
                f"a verb changes {path.parent}, or was killed while it did and left files of two versions",
                "if none runs, run it again: the next verb that changes the folder first puts all back",
            )
    for model in models_in(subject.repositories):
        try:
            config = as_json(read_config(model))
            for number in version_numbers(model):
                has_manifest = manifest.check_files(None, config, model / str(number))
                (verified if has_manifest else without).append(model.name)
        except manifest.ManifestError as exc:
            yield refused(exc)
        except RepositoryError:  # `configs` reports it
            continue
    if without:
        yield ok(f"no manifest, and none required: {', '.join(dict.fromkeys(without))}")
    yield ok(f"{', '.join(dict.fromkeys(verified)) or 'no model'} as deployed")


def server(subject: Examined) -> Iterator[Finding]:
    try:
        with connect(subject.url) as triton:
            answered = triton.version().partition(" ")[2]
    except TritonUnreachable as exc:
        if subject.must_run:
            raise
        cause, _, fix = str(exc).partition(": ")
        yield warn(f"{cause}, so the served models were not checked", fix)
    else:
        yield ok(f"client {version('tritonclient')}, server {answered}")


def served(subject: Examined) -> Iterator[Finding]:
    """Check that Triton serves every model, in its newest version and with the config on disk."""
    if not _runs(subject):
        yield ok("no server to ask")
        return
    with connect(subject.url) as triton:
        index = triton.versions()
    ready: dict[str, int] = {}
    for entry in index:
        if entry.get("state") == "READY":
            ready[entry["name"]] = max(int(entry["version"]), ready.get(entry["name"], 0))
    on_disk, held_back = preflight.check_repositories(subject.repositories), list[str]()
    for entry in index:
        name, state, reason = entry["name"], entry.get("state", ""), entry.get("reason", "")
        if state == "UNAVAILABLE" and reason != "unloaded":
            first_line = next(iter(reason.splitlines()), "no reason given")  # a traceback may follow
            yield fail(f"{name} did not load ({first_line})", f"correct it, then {_load(subject, name)}")
        elif name not in ready and not state and preflight.waits_until_asked(on_disk.get(name, {})):
            held_back.append(name)
        elif name not in ready:
            yield warn(f"{name} is not loaded ({reason or state or 'never requested'})", _load(subject, name))
    folders = {model.name: model for model in models_in(subject.repositories)}
    for name, ready_version in ready.items():
        newest = max(version_numbers(folders[name]), default=0) if name in folders else ready_version
        if newest != ready_version:
            yield warn(
                f"{name} serves version {ready_version}, but version {newest} is the latest on disk",
                _load(subject, name),
            )
    yield from check_configs_in_use(subject, sorted(ready))
    if held_back:
        yield ok(f"loaded when a verb asks: {', '.join(sorted(held_back))}")
    yield ok(f"ready: {', '.join(sorted(ready)) or 'no model'}")


def check_configs_in_use(subject: Examined, models: Collection[str]) -> Iterator[Finding]:
    """Check that each model serves the config of its files. A killed lab may leave another one."""
    with connect(subject.url) as triton:
        for folder in (model for model in models_in(subject.repositories) if model.name in models):
            try:
                on_disk = as_json(read_config(folder))
            except RepositoryError:  # `configs` reports it
                continue
            if config_change.differs_from_disk(running := triton.config(folder.name), on_disk):
                yield warn(
                    f"{folder.name} serves another config than its files ({summary(running)})",
                    f"if that is not intended, reset it (`gourmet config {folder.name} --reset"
                    f"{_url_option(subject)}`)",
                )


def answers(subject: Examined) -> Iterator[Finding]:
    """Check that every configured model answers its sample."""
    if not _runs(subject):
        yield ok("no server to ask")
        return
    on_disk = preflight.check_repositories(subject.repositories)
    with connect(subject.url) as triton:
        served = {name: on_disk.get(name, {}) for name in sorted(triton.index())}
    for system, name in preflight.configured_models(subject.environment, served).items():
        try:
            yield ok(f"{name} answers: {ask_sample(subject.url, system, name)}")
        except GourmetError as exc:
            yield refused(exc)


def web(subject: Examined) -> Iterator[Finding]:
    """Check that the web app is ready. It may ask another Triton than this one."""
    url = f"http://{reachable(subject.host)}:{subject.ports.get('--port')}"
    if "--port" not in subject.ports or not http_ok(f"{url}/healthz", _PROBE_WITHIN_S):
        yield ok("no web app to ask")
        return
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_READY_WITHIN_S):
            yield ok(f"{url} is ready")
    except OSError as exc:
        reason = (
            exc.read().decode(errors="replace").strip() if isinstance(exc, urllib.error.HTTPError) else exc
        )
        yield fail(
            f"the web app at {url} runs but is not ready ({reason})",
            "see the lines above; it asks the Triton of its TRITON_SERVER_URL",
        )


def _load(subject: Examined, name: str) -> str:
    return f"load it (`gourmet config {name} --reset{_url_option(subject)}`)"


def _url_option(subject: Examined) -> str:
    return f" --url {subject.url}" if subject.must_run else ""


def _runs(subject: Examined) -> bool:
    with connect(subject.url) as triton:
        return triton.is_live()


# A check may need that those before it passed.
CHECKS: Final[dict[str, Callable[[Examined], Iterator[Finding]]]] = {
    "wheel": triton_wheel,
    "packages": packages,
    "memory": shared_memory,
    "ports": ports,
    "gpu": gpus,
    "systems": systems,
    "models": configs,
    "manifests": manifests,
    "server": server,
    "served": served,
    "answers": answers,
    "web": web,
}
OF_THIS_MACHINE: Final = ("wheel", "packages", "memory", "ports", "gpu", "systems", "web")


def examine(subject: Examined, left_out: Collection[str] = ()) -> Iterator[tuple[str, Finding]]:
    """Yield the findings, each with the name of its check; a check that raises has failed."""
    for name, check in CHECKS.items():
        if name in left_out:
            continue
        try:
            for finding in check(subject):
                yield name, finding
        except GourmetError as exc:
            yield name, refused(exc)
