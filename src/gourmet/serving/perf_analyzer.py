"""NVIDIA's perf_analyzer: the program, downloaded at its first use, with its environment and its keys."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.runtime.files import written_aside
from gourmet.serving import api_keys
from gourmet.serving.wheel import find_wheel

# Two libraries that perf_analyzer needs, with their longer names in nvidia-pytriton.
_LIBRARIES: Final = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}

# The last release for older C libraries is in the wheel of NVIDIA's client; later ones have their own wheel.
_OLDER: Final = "tritonclient==2.50.0"
_NEWER: Final = "perf-analyzer==2.60.0"
_GLIBC_OF_NEWER: Final = (2, 38)


def binary() -> Path:
    """Return the path of the program in this environment; download it first if it is missing."""
    program = Path(sysconfig.get_path("scripts"), "nvidia_perf_analyzer")
    if program.is_file():
        return program
    glibc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    package = _NEWER if glibc >= _GLIBC_OF_NEWER else _OLDER
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as folder:
        download = [sys.executable, "-P", "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package]
        done = subprocess.run(download, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise GourmetError(
                f"pip cannot download {package}, which has perf_analyzer "
                f"({done.stderr.strip().rpartition(chr(10))[2]}): put the program at {program}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel, written_aside(program) as aside:
            (name,) = (name for name in wheel.namelist() if name.endswith("bin/perf_analyzer"))
            aside.write_bytes(wheel.read(name))
            aside.chmod(0o755)
    return program


def environment(folder: Path) -> dict[str, str]:
    """Return our environment, with links in `folder` to the libraries in the wheel."""
    for name, pattern in _LIBRARIES.items():
        for library in sorted(find_wheel().libraries.glob(pattern))[-1:]:
            (folder / name).symlink_to(library)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def keys(url: str, protocol: str) -> list[str]:
    headers = api_keys.headers_for(url, grpc=protocol == "grpc")
    return [word for name, key in headers.items() for word in ("-H", f"{name}:{key}")]
