"""Python, the C library and the packages, by the rules that `gourmet up` starts with."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Final

from gourmet.doctor.findings import Finding, Subject, ok, warn
from gourmet.serving import wheel

# requirements/ lies beside src/ in a checkout; an installed image has none, and nothing to compare.
_PINS: Final = Path(__file__).resolve().parents[3] / "requirements"
_PIN_FILES: Final = ("web.txt", "models.txt", "triton.txt")


def python(_: Subject) -> Iterator[Finding]:
    wheel.check_python(sys.version_info[:2])
    yield ok(f"Python {platform.python_version()}")


def libpython(_: Subject) -> Iterator[Finding]:
    folder = wheel.libpython_dir("{}.{}".format(*sys.version_info[:2]))
    yield ok(f"its shared library lies in {folder or 'the loader’s path'}")


def glibc(_: Subject) -> Iterator[Finding]:
    found = platform.libc_ver()
    wheel.check_glibc(found)
    yield ok(" ".join(found))


def numpy(subject: Subject) -> Iterator[Finding]:
    wheel.check_numpy(subject.site_packages)
    yield ok(f"numpy {_installed('numpy', subject.site_packages)}")


def triton_wheel(_: Subject) -> Iterator[Finding]:
    wheel.find_wheel()
    yield ok(f"nvidia-pytriton {version('nvidia-pytriton')} is whole")


def packages(subject: Subject) -> Iterator[Finding]:
    """The installed packages against the versions that this was tested with."""
    pins = pinned()
    others = []
    for name, wanted in pins.items():
        found = _installed(name, subject.site_packages)
        # A CPU build of torch says so behind a plus.
        if found and found.partition("+")[0] != wanted:
            others.append(f"{name} {found} instead of {wanted}")
    if others:
        yield warn(f"tested with other versions: {', '.join(others)}", "run `make setup`")
    elif pins:
        yield ok(f"{len(pins)} pinned packages are as tested")
    else:
        yield ok("no pins here to compare the packages with")


def pinned(folder: Path = _PINS) -> dict[str, str]:
    """The packages that serving needs, with the versions that the requirements name."""
    pins: dict[str, str] = {}
    for file in _PIN_FILES:
        if (folder / file).is_file():
            found = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", (folder / file).read_text(), re.MULTILINE)
            pins.update(found)
    return pins


def _installed(name: str, site_packages: Path) -> str:
    for package in distributions(name=name, path=[str(site_packages)]):
        return package.version
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
