"""GPUs, whether the programs at hand carry kernels for them, and whether Docker hands them to containers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gourmet.doctor.findings import Examined, Finding, fail, ok, warn
from gourmet.errors import GourmetError

Capability = tuple[int, int]

_CPU_INSTEAD: Final = (
    "serve on the CPU (`gourmet config MODEL --cpu`; containers: "
    "`docker compose -f docker-compose.yaml -f docker-compose.cpu.yaml up`)"
)


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it."""

    index: int
    name: str
    driver: str
    capability: Capability

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True)
class Carrier:
    """A program with kernels for a range of GPUs, and how to get it for others."""

    name: str
    lowest: Capability
    highest: Capability
    other: str


# Source: NVIDIA's release notes of Triton 25.08, the first on CUDA 13, and later: up to Blackwell.
IMAGE: Final = Carrier(
    "NVIDIA's image 26.09-py3",
    (7, 5),
    (12, 1),
    "build on another (`docker compose build --build-arg TRITON_TAG=… triton`; 24.10-py3 has 6.0 to 9.0)",
)
# 0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0
_ROW: Final = re.compile(r"^(\d+), (.+), (\S+), (\d+)\.(\d+)\s*$", re.MULTILINE)


class GpuTrouble(GourmetError):
    """There should be a GPU, and it cannot be asked."""


def find() -> list[Gpu]:
    """The GPUs of this machine; none where nvidia-smi is missing."""
    if not shutil.which("nvidia-smi"):
        return []
    status, words = _said(
        "nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap", "--format=csv,noheader"
    )
    found = _ROW.findall(words)
    if status or not found:
        raise GpuTrouble(
            f"nvidia-smi is there and finds no usable GPU ({' '.join(words.split())[:200]}): load or install "
            "the driver (`sudo modprobe nvidia`), or serve on the CPU"
        )
    return [
        Gpu(int(index), name, driver, (int(major), int(minor))) for index, name, driver, major, minor in found
    ]


def visible(_: Examined) -> Iterator[Finding]:
    found = find()
    if not found:
        yield ok("no NVIDIA GPU; everything runs on the CPU")
    for gpu in found:
        yield ok(f"{gpu}, compute capability {_dotted(gpu.capability)}, driver {gpu.driver}")


def kernels(_: Examined) -> Iterator[Finding]:
    """Every GPU against every program that would compute on it."""
    found = find()
    if not found:
        yield ok("nothing to compare: no GPU")
        return
    import torch

    carriers = [IMAGE]
    if arches := re.findall(r"sm_(\d+)(\d)", " ".join(torch.cuda.get_arch_list())):
        carried = sorted((int(major), int(minor)) for major, minor in arches)
        name = f"torch {torch.__version__}"
        carriers.append(Carrier(name, carried[0], carried[-1], "install another torch"))
    missing = [(gpu, carrier) for gpu in found for carrier in carriers if not _carries(carrier, gpu)]
    for gpu, carrier in missing:
        yield fail(
            f"{gpu} has compute capability {_dotted(gpu.capability)}, {carrier.name} carries kernels for "
            f"{_dotted(carrier.lowest)} to {_dotted(carrier.highest)}; it would end in "
            '"CUDA failure 209: no kernel image is available for execution on the device"',
            f"{carrier.other}, or {_CPU_INSTEAD}",
        )
    if not missing:
        yield ok(f"{', '.join(carrier.name for carrier in carriers)} carry what the GPUs need")


def docker(_: Examined) -> Iterator[Finding]:
    """Docker's GPU runtime, which is needed for the containers alone."""
    if not shutil.which("docker"):
        yield ok("no Docker here; `gourmet up` needs none")
        return
    status, words = _said("docker", "info", "--format", "{{json .Runtimes}}")
    has_nvidia = '"nvidia"' in words
    if status:
        yield warn(
            f"Docker does not answer ({' '.join(words.split())[:160]})",
            "start it (`sudo systemctl start docker`) or join its group; `gourmet up` needs none",
        )
    elif find() and not has_nvidia:
        yield fail(
            "there is a GPU, and Docker has no NVIDIA runtime to hand it to containers",
            "install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure --runtime=docker` "
            f"and restart Docker; or {_CPU_INSTEAD}",
        )
    else:
        yield ok("Docker answers" + (", with NVIDIA's runtime" if has_nvidia else ""))


def _said(*command: str) -> tuple[int, str]:
    """A program's status and all that it printed."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return 1, str(exc)
    return ran.returncode, ran.stdout + ran.stderr


def _carries(carrier: Carrier, gpu: Gpu) -> bool:
    # Within a major version what is built for one minor runs on the later ones.
    return carrier.lowest <= gpu.capability and gpu.capability[0] <= carrier.highest[0]


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
