"""What tests need beside the environment. A test without it is skipped; in CI (the variable CI) it fails."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest


def absent(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and CI has to have it")
    pytest.skip(reason, allow_module_level=True)


def need(program: str, package: str = "") -> str:
    """Return the program's path; Debian's package brings it."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    return path or absent(f"no {program} here: `apt-get install {package or program}`")


def need_module(name: str, command: str) -> None:
    if importlib.util.find_spec(name) is None:
        absent(f"{name} is not installed: `{command}` installs it")


def no_photos(folder: object) -> NoReturn:
    """Skip, in CI too: the photos of shared/ are not for everybody."""
    pytest.skip(f"no real photos at {folder}: shared/food11 beside the checkout has them, or GOURMET_FOOD11")
