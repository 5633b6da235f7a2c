"""The peers' own virtual environment, made once for each version of its requirements."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError

REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_TIMEOUT_S: Final = 900.0


class PeersNotInstalled(GourmetError):
    """The peers' packages cannot be had here; in pip's own words."""


def folder(requirements: Path = REQUIREMENTS) -> Path:
    """Where the environment of these requirements and this Python lies, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    what = requirements.read_bytes() + sys.version.encode()
    return cache / "gourmet" / f"peers-{hashlib.sha256(what).hexdigest()[:12]}"


def ensure(say: Callable[[str], None] = lambda _: None, requirements: Path = REQUIREMENTS) -> Path:
    """The environment's folder of programs; made first if it is not there, which takes about a minute."""
    home = folder(requirements)
    ready = home / ".ready"
    if not ready.exists():
        say(f"installing the peers into {home}, once")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            _run([sys.executable, "-m", "venv", str(home)])
            pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
            _run([*pip, "install", "--quiet", "--requirement", str(requirements)])
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        ready.touch()
    return home / "bin"


def _run(command: list[str]) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as exc:
        raise PeersNotInstalled(f"installing the peers took longer than {_TIMEOUT_S:.0f} s") from exc
    if ran.returncode:
        words = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or [ran.stderr[-500:]]
        raise PeersNotInstalled(
            f"the peers of {REQUIREMENTS.name} cannot be installed ({words[0]}): "
            "give `--arm` for those to measure without them, such as --arm ours-fp32 --arm limit-fp32"
        )
