"""GPUs, and whether the programs at hand carry kernels for them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet.doctor.findings import Finding, Subject, fail, ok, warn
from gourmet.errors import GourmetError

Capability = tuple[int, int]

# For drivers that do not tell a compute capability. Source: developer.nvidia.com/cuda-gpus and its legacy
# list, as of 2026. The longest name that occurs in the GPU's own counts.
CAPABILITIES: Final[dict[str, Capability]] = {
    "K80": (3, 7),
    "M60": (5, 2),
    "P100": (6, 0),
    "P40": (6, 1),
    "P4": (6, 1),
    "GTX 10": (6, 1),
    "TITAN Xp": (6, 1),
    "V100": (7, 0),
    "TITAN V": (7, 0),
    "T4": (7, 5),
    "RTX 20": (7, 5),
    "GTX 16": (7, 5),
    "A100": (8, 0),
    "A30": (8, 0),
    "A10": (8, 6),
    "A40": (8, 6),
    "RTX 30": (8, 6),
    "L4": (8, 9),
    "L40": (8, 9),
    "RTX 40": (8, 9),
    "H100": (9, 0),
    "H200": (9, 0),
    "GH200": (9, 0),
    "B200": (10, 0),
    "RTX 50": (12, 0),
}

CPU_INSTEAD: Final = (
    "serve on the CPU (`gourmet config MODEL --cpu`; containers: "
    "`docker compose -f docker-compose.yaml -f docker-compose.cpu.yaml up`)"
)


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it; the capability is None where neither it nor our table knows."""

    index: int
    name: str
    driver: str
    capability: Capability | None

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True)
class Carrier:
    """A program with kernels for a range of GPUs; `highest` is None where newer ones are compiled for."""

    name: str
    lowest: Capability
    highest: Capability | None
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
_DOCKERFILE: Final = Path(__file__).resolve().parents[3] / "Dockerfile.triton"


class GpuTrouble(GourmetError):
    """There should be a GPU, and it cannot be asked."""


def find() -> list[Gpu]:
    """The GPUs of this machine; none where there is no nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    try:
        rows = _ask("index,name,driver_version,compute_cap")
    except GpuTrouble:
        # Drivers before 510 know no compute capability.
        rows = [[*row, ""] for row in _ask("index,name,driver_version")]
    return [Gpu(int(row[0]), row[1], row[2], _capability(row[1], row[3])) for row in rows]


def _ask(fields: str) -> list[list[str]]:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise GpuTrouble(f"nvidia-smi cannot be run ({exc}): install the driver again") from exc
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.stdout.splitlines() if line.strip()]
    if ran.returncode or not rows or any(len(row) != fields.count(",") + 1 for row in rows):
        words = " ".join((ran.stdout + ran.stderr).split())[:200] or f"status {ran.returncode}"
        raise GpuTrouble(
            f"nvidia-smi is there and finds no usable GPU ({words}): load or install the driver "
            "(`sudo modprobe nvidia`), or serve on the CPU"
        )
    return rows


def _capability(name: str, told: str) -> Capability | None:
    if found := re.fullmatch(r"(\d+)\.(\d+)", told):
        return int(found[1]), int(found[2])
    known = [key for key in CAPABILITIES if re.search(rf"\b{re.escape(key)}(?!\d\b)", name)]
    return CAPABILITIES[max(known, key=len)] if known else None


def visible(_: Subject) -> Iterator[Finding]:
    found = find()
    if not found and Path("/dev/nvidiactl").exists():
        yield warn("there is an NVIDIA device and no nvidia-smi to ask", "install the driver's utilities")
    elif not found:
        yield ok("no NVIDIA GPU; everything runs on the CPU")
    for gpu in found:
        if gpu.capability is None:
            yield warn(f"{gpu} has a compute capability that is not known", "update the driver")
        else:
            yield ok(f"{gpu}, compute capability {_dotted(gpu.capability)}, driver {gpu.driver}")


def kernels(_: Subject) -> Iterator[Finding]:
    """Every GPU against every program that would compute on it."""
    found = find()
    if not found:
        yield ok("nothing to compare: no GPU")
        return
    carriers = [image(), *_installed_carriers()]
    problems = [said for gpu in found for carrier in carriers for said in compare(gpu, carrier)]
    yield from problems
    if not problems:
        yield ok(f"{', '.join(carrier.name for carrier in carriers)} carry what the GPUs need")


def compare(gpu: Gpu, carrier: Carrier) -> Iterator[Finding]:
    """What keeps `carrier` from computing on `gpu`."""
    if gpu.capability is None:
        return
    upto = f"to {_dotted(carrier.highest)}" if carrier.highest else "and later"
    says = (
        f"{gpu} has compute capability {_dotted(gpu.capability)}, {carrier.name} carries kernels for "
        f'{_dotted(carrier.lowest)} {upto}; it would end in "CUDA failure 209: no kernel image is available '
        'for execution on the device"'
    )
    if gpu.capability < carrier.lowest:
        yield fail(f"{says}, since the GPU is too old for it", f"{carrier.older}, or {CPU_INSTEAD}")
    # Within a major version what is built for one minor runs on the later ones.
    elif carrier.highest and gpu.capability[0] > carrier.highest[0]:
        yield fail(f"{says}, since the GPU is newer than it", f"{carrier.newer}, or {CPU_INSTEAD}")
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
        name = f"torch {torch.__version__}"
        driver = _DRIVERS.get(str(torch.version.cuda).partition(".")[0], 0)
        yield Carrier(
            name, carried[0], carried[-1], driver, "install an older torch", "install a newer torch"
        )


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
