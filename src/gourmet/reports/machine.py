"""The machine, versions and commit that a measurement belongs to."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from gourmet.runtime.instances import available_cpus

_PACKAGES: Final = ("nvidia-pytriton", "tritonclient", "onnxruntime", "openvino", "torch", "numpy", "pillow")


def about() -> dict[str, str]:
    """What a reader needs to know to compare a figure with one of their own."""
    return {
        "processor": _processor(),
        "cpus": f"{available_cpus()} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(_versions()),
        "commit": _commit(),
    }


def _versions() -> Iterator[str]:
    """What is here of the packages that matter: where only a client runs, there is no torch."""
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not in a checkout"
