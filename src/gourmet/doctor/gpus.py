"""The GPUs of this machine, and whether NVIDIA's image of Triton carries kernels for them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gourmet.doctor.findings import Examined, Finding, fail, ok
from gourmet.errors import GourmetError

# The tag of Dockerfile.triton and its compute capabilities: NVIDIA's release notes of Triton 25.08, the first
# on CUDA 13, and later. Within a major version what is built for one minor runs on the later ones.
IMAGE: Final = "26.09-py3"
_LOWEST: Final = (7, 5)
_HIGHEST: Final = (12, 1)
# 0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0
_ROW: Final = re.compile(r"^(\d+), (.+), (\S+), (\d+)\.(\d+)\s*$", re.MULTILINE)


class GpuTrouble(GourmetError):
    """There should be a GPU, and it cannot be asked."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it."""

    index: int
    name: str
    driver: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}), compute capability {'.'.join(map(str, self.capability))}"


def find() -> list[Gpu]:
    """The GPUs of this machine; none where nvidia-smi is missing."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        words = " ".join((ran.stdout + ran.stderr).split())[:200]
        found = [] if ran.returncode else _ROW.findall(ran.stdout)
    except (OSError, subprocess.TimeoutExpired) as exc:
        found, words = [], str(exc)
    if not found:
        raise GpuTrouble(
            f"nvidia-smi is there and finds no usable GPU ({words}): load or install the driver "
            "(`sudo modprobe nvidia`), or serve on the CPU"
        )
    return [
        Gpu(int(index), name, driver, (int(major), int(minor))) for index, name, driver, major, minor in found
    ]


def gpus(_: Examined) -> Iterator[Finding]:
    """Every GPU; torch and ONNX Runtime of `gourmet up` say themselves what they cannot run on."""
    found = find()
    if not found:
        yield ok("no NVIDIA GPU; everything runs on the CPU")
    for gpu in found:
        if gpu.capability >= _LOWEST and gpu.capability[0] <= _HIGHEST[0]:
            yield ok(f"{gpu}, driver {gpu.driver}")
        else:
            yield fail(
                f"{gpu}: NVIDIA's image {IMAGE} carries kernels for 7.5 to 12.1; it would end in "
                '"CUDA failure 209: no kernel image is available for execution on the device"',
                "build on another (`docker compose build --build-arg TRITON_TAG=… triton`; 24.10-py3 has 6.0 "
                "to 9.0), or serve on the CPU (`gourmet config MODEL --cpu`; containers: "
                "`docker compose -f docker-compose.yaml -f docker-compose.cpu.yaml up`)",
            )
