"""Virtual environments of other servers, each made once for a version of its requirements."""

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

_TIMEOUT_S: Final = 900.0


def folder(requirements: Path) -> Path:
    """Return the folder of the environment of these requirements and this Python, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    what = requirements.read_bytes() + sys.version.encode()
    return cache / "gourmet" / f"peers-{hashlib.sha256(what).hexdigest()[:12]}"


def programs(requirements: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the environment's folder of programs; create it at the first use, in about a minute."""
    home = folder(requirements)
    ready = home / ".ready"
    if not ready.exists():
        say(f"installing other servers into {home}, once")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            # Our pip installs the packages: another pip would take ten seconds more.
            _run([sys.executable, "-m", "venv", "--without-pip", str(home)], requirements)
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
            pip += ["--python", str(home / "bin" / "python")]
            _run([*pip, "install", "--quiet", "--requirement", str(requirements)], requirements)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        ready.touch()
    return home / "bin"


def _run(command: list[str], requirements: Path) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as exc:
        raise GourmetError(f"installing {requirements} took longer than {_TIMEOUT_S:.0f} s") from exc
    if ran.returncode:
        words = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or [ran.stderr[-500:]]
        raise GourmetError(
            f"{requirements} cannot be installed ({words[0]}): name those to measure without it by `--arm`, "
            "such as --arm ours-fp32 --arm limit-fp32"
        )
