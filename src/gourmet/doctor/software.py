"""Python, the C library and the packages, by the rules that `gourmet up` starts with."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from gourmet.doctor.findings import Examined, Finding, ok, warn
from gourmet.import_guard import CHECKOUT
from gourmet.serving import wheel

# requirements/ lies beside src/ in a checkout; an installed image has none, and nothing to compare.
_PINS: Final = CHECKOUT / "requirements"
_PIN_FILES: Final = ("web.txt", "models.txt", "triton.txt")


def triton_wheel(_: Examined) -> Iterator[Finding]:
    """What `gourmet up` asks before it starts: Python, its library, the C library, numpy, Triton's files."""
    wheel.find_wheel()
    yield ok(
        f"nvidia-pytriton {version('nvidia-pytriton')} is whole, with Python {platform.python_version()}, "
        f"numpy {version('numpy')} and {' '.join(platform.libc_ver())}"
    )


def packages(_: Examined) -> Iterator[Finding]:
    """The installed packages against the versions that this was tested with."""
    pins = pinned()
    others = []
    for name, wanted in pins.items():
        found = _installed(name)
        # A CPU build of torch says so behind a plus.
        if found and found.partition("+")[0] != wanted:
            others.append(f"{name} {found} instead of {wanted}")
    if others:
        yield warn(f"tested with other versions: {', '.join(others)}", "run `make setup`")
    elif pins:
        yield ok(f"{len(pins)} pinned packages are as tested")
    else:
        yield ok("no pins here to compare the packages with")


def torch_is_whole(_: Examined) -> Iterator[Finding]:
    """Python started in the checkout does not take its folder triton/ for torch's compiler of that name."""
    asks = "import importlib.util as u; found = u.find_spec('triton'); print(found and found.origin or found)"
    ran = subprocess.run(
        [sys.executable, "-c", asks], cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=False
    )
    if "ModuleSpec" in ran.stdout:
        yield warn(
            f"python started in {CHECKOUT} takes its folder triton/ for torch's compiler, and torch.compile "
            "fails there",
            "run `make setup`, or start python in another folder",
        )
    else:
        yield ok("python started in the checkout finds torch whole")


def pinned(folder: Path = _PINS) -> dict[str, str]:
    """The packages that serving needs, with the versions that the requirements name."""
    pins: dict[str, str] = {}
    for file in _PIN_FILES:
        if (folder / file).is_file():
            found = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", (folder / file).read_text(), re.MULTILINE)
            pins.update(found)
    return pins


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
