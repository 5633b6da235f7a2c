"""The machine, versions and commit that a measurement belongs to."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from gourmet.served.instances import available_cpus

_PACKAGES: Final = ("nvidia-pytriton", "tritonclient", "onnxruntime", "torch", "numpy", "pillow")


def about() -> dict[str, str]:
    """Return the facts that a reader needs to compare a figure with one of their own."""
    versions = {package.name.lower(): package.version for package in distributions()}
    return {
        "processor": _processor(),
        "cpus": f"{available_cpus()} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        # A client's machine may have no torch.
        "versions": ", ".join(f"{name} {versions[name]}" for name in _PACKAGES if name in versions),
        "commit": _commit(),
    }


def _processor() -> str:
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return match[1] if match else platform.machine()


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not in a checkout"
