"""GPUs, and whether the programs at hand carry kernels for them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet.doctor.findings import Examined, Finding, fail, ok, unless_any, warn
from gourmet.errors import GourmetError

Capability = tuple[int, int]

CPU_INSTEAD: Final = (
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
    """A program with kernels for a range of GPUs."""

    name: str
    lowest: Capability
    highest: Capability
    driver: int
    older: str
    newer: str


# Sources: NVIDIA's release notes of Triton 24.10 (CUDA 12.6, compute capability 6.0 to Hopper's 9.0, driver
# 560) and 25.08 (the first on CUDA 13: 7.5 to Blackwell's 12.1); CUDA 13 wants driver 580.
_FIRST_CUDA_13: Final = (25, 8)
IMAGE_CUDA_12: Final = ((6, 0), (9, 0), 560)
IMAGE_CUDA_13: Final = ((7, 5), (12, 1), 580)
# The first driver of each CUDA, also of its later minor versions. Source: NVIDIA's CUDA release notes.
_DRIVERS: Final = {"11": 450, "12": 525, "13": 580}
# Source: tools/ci_build/github/linux/build_cuda_c_api_package.sh of microsoft/onnxruntime: 75;80;90.
ONNXRUNTIME_GPU: Final = Carrier(
    "onnxruntime-gpu",
    (7, 5),
    (9, 0),
    525,
    "install an older one (1.18 carries 6.0)",
    "build it for this GPU (CMAKE_CUDA_ARCHITECTURES)",
)
# 0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0
_ROW: Final = re.compile(r"^(\d+), (.+), (\S+), (\d+)\.(\d+)\s*$", re.MULTILINE)
_DOCKERFILE: Final = Path(__file__).resolve().parents[3] / "Dockerfile.triton"


class GpuTrouble(GourmetError):
    """There should be a GPU, and it cannot be asked."""


def find() -> list[Gpu]:
    """The GPUs of this machine; none where nvidia-smi is missing."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise GpuTrouble(f"nvidia-smi cannot be run ({exc}): install the driver again") from exc
    found = _ROW.findall(ran.stdout)
    if ran.returncode or not found:
        words = " ".join((ran.stdout + ran.stderr).split())[:200] or f"status {ran.returncode}"
        raise GpuTrouble(
            f"nvidia-smi is there and finds no usable GPU ({words}): load or install the driver "
            "(`sudo modprobe nvidia`), or serve on the CPU"
        )
    return [
        Gpu(int(index), name, driver, (int(major), int(minor))) for index, name, driver, major, minor in found
    ]


def visible(_: Examined) -> Iterator[Finding]:
    found = find()
    if not found and Path("/dev/nvidiactl").exists():
        yield warn("there is an NVIDIA device and no nvidia-smi to ask", "install the driver's utilities")
    elif not found:
        yield ok("no NVIDIA GPU; everything runs on the CPU")
    for gpu in found:
        yield ok(f"{gpu}, compute capability {_dotted(gpu.capability)}, driver {gpu.driver}")


def kernels(_: Examined) -> Iterator[Finding]:
    """Every GPU against every program that would compute on it."""
    found = find()
    if not found:
        yield ok("nothing to compare: no GPU")
        return
    carriers = [image(), *_installed_carriers()]
    yield from unless_any(
        (finding for gpu in found for carrier in carriers for finding in compare(gpu, carrier)),
        f"{', '.join(carrier.name for carrier in carriers)} carry what the GPUs need",
    )


def compare(gpu: Gpu, carrier: Carrier) -> Iterator[Finding]:
    """What keeps `carrier` from computing on `gpu`."""
    too_old = gpu.capability < carrier.lowest
    # Within a major version what is built for one minor runs on the later ones.
    too_new = gpu.capability[0] > carrier.highest[0]
    if too_old or too_new:
        yield fail(
            f"{gpu} has compute capability {_dotted(gpu.capability)}, {carrier.name} carries kernels for "
            f"{_dotted(carrier.lowest)} to {_dotted(carrier.highest)}; it would end in "
            '"CUDA failure 209: no kernel image is available for execution on the device"',
            f"{carrier.older if too_old else carrier.newer}, or {CPU_INSTEAD}",
        )
    if int(gpu.driver.partition(".")[0]) < carrier.driver:
        yield warn(
            f"{gpu} has driver {gpu.driver}, {carrier.name} wants {carrier.driver} or later",
            f"update the driver (data-centre GPUs may do with an older one), or {CPU_INSTEAD}",
        )


def image(dockerfile: Path = _DOCKERFILE) -> Carrier:
    """NVIDIA's image, by the tag that Dockerfile.triton names."""
    text = dockerfile.read_text() if dockerfile.is_file() else ""
    found = re.search(r"^ARG TRITON_TAG=((\d+)\.(\d+)\S*)", text, re.MULTILINE)
    tag, release = (found[1], (int(found[2]), int(found[3]))) if found else ("", _FIRST_CUDA_13)
    lowest, highest, driver = IMAGE_CUDA_13 if release >= _FIRST_CUDA_13 else IMAGE_CUDA_12
    build = "`docker compose build --build-arg TRITON_TAG={} triton`"
    return Carrier(
        f"NVIDIA's image {tag}".strip(),
        lowest,
        highest,
        driver,
        f"build on an older image ({build.format('24.10-py3')}, for 6.0 and later)",
        f"build on a newer image ({build.format('…')})",
    )


def _installed_carriers() -> Iterator[Carrier]:
    import onnxruntime
    import torch

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        yield ONNXRUNTIME_GPU
    arches = re.findall(r"sm_(\d+)(\d)", " ".join(torch.cuda.get_arch_list()))
    if arches:
        carried = sorted((int(major), int(minor)) for major, minor in arches)
        yield Carrier(
            f"torch {torch.__version__}",
            carried[0],
            carried[-1],
            _DRIVERS.get(str(torch.version.cuda).partition(".")[0], 0),
            "install an older torch",
            "install a newer torch",
        )


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
