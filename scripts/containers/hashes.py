"""Write requirements/IMAGE.hashes.txt of each image: the wheels that pip installs in it, on x86-64 and arm64.

`.venv/bin/python -P scripts/containers/hashes.py [IMAGE…]`, with a pip that knows --dry-run and --report.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# In the order of Debian 12's and Ubuntu 24.04's glibc, the images' systems.
GLIBC = ("2014", "_2_17", "_2_24", "_2_28", "_2_34", "_2_35", "_2_36")


def files(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("-r", f"requirements/{name}.txt"))


def without(name: str, package: str) -> tuple[str, ...]:
    """Return the pins of a file of requirements, except those of `package`."""
    pins = re.findall(r"^[\w.-]+.*==\S+", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE)
    return tuple(pin for pin in pins if not pin.startswith(f"{package}=="))


# What `gourmet up --triton-only` imports.
LAUNCHER = ("click", "psutil", "tritonclient[grpc,http]")
# By image: its Python, and what pip is asked for, in one or more calls.
IMAGES: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    # redis wants async-timeout of Python before 3.11.3, such as Debian's; pip asks its own Python.
    "web": ("3.11", ((*files("web", "tracing", "redis"), "async-timeout"),)),
    # Without the wheel's Python API.
    "triton-cpu": ("3.11", ((*files("models"), *LAUNCHER), ("--no-deps", "nvidia-pytriton"))),
    "triton": ("3.12", ((*without("models", "onnxruntime"), *files("gpu"), *LAUNCHER),)),
    "lab": ("3.11", ((*files("lab", "serve", "models"), "pydantic", "tritonclient[grpc,http]"),)),
}


def wheels(machine: str, python: str, wanted: tuple[str, ...]) -> dict[str, str]:
    """Return the hash of each package's wheel, by `name==version`."""
    platforms = [f"--platform=manylinux{glibc}_{machine}" for glibc in GLIBC]
    command = [
        *("install", "-q", "--dry-run", "--ignore-installed", "--only-binary=:all:"),
        *(f"--python-version={python}", "-c", "requirements/constraints.txt"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        where = [*platforms, f"--target={folder}", f"--report={report}"]
        subprocess.run([sys.executable, "-m", "pip", *command, *where, *wanted], cwd=ROOT, check=True)
        installed = json.loads(report.read_text())["install"]
    return {
        f"{package['metadata']['name']}=={package['metadata']['version']}": package["download_info"][
            "archive_info"
        ]["hashes"]["sha256"]
        for package in installed
    }


def write(image: str) -> None:
    python, calls = IMAGES[image]
    both = [wheels(machine, python, call) for machine in ("x86_64", "aarch64") for call in calls]
    lines = [
        " \\\n    ".join([pin, *sorted({f"--hash=sha256:{hashes[pin]}" for hashes in both if pin in hashes})])
        for pin in sorted(set().union(*both), key=str.lower)
    ]
    head = (
        f"# Packages of the image with the hashes of their wheels for Python {python} on x86-64 and arm64.\n"
        f"# Written by scripts/containers/hashes.py.\n"
    )
    (ROOT / "requirements" / f"{image}.hashes.txt").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or IMAGES:
        write(name)
