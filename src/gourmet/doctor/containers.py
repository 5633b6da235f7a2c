"""Docker, and whether it can hand a GPU to containers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from gourmet.doctor import gpus
from gourmet.doctor.findings import Examined, Finding, fail, ok, warn


def docker(_: Examined) -> Iterator[Finding]:
    """Docker's GPU runtime, which is needed for the containers alone."""
    if not shutil.which("docker"):
        yield ok("no Docker here; `gourmet up` needs none")
        return
    command = ["docker", "info", "--format", "{{json .Runtimes}}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        yield warn(f"docker cannot be run ({exc})", "start it, or do without containers: `gourmet up`")
        return
    if ran.returncode:
        words = " ".join((ran.stderr or ran.stdout).split())[:160] or f"status {ran.returncode}"
        yield warn(
            f"Docker does not answer ({words})",
            "start it (`sudo systemctl start docker`) or join its group; `gourmet up` needs none",
        )
        return
    has_nvidia = '"nvidia"' in ran.stdout
    if gpus.find() and not has_nvidia:
        yield fail(
            "there is a GPU, and Docker has no NVIDIA runtime to hand it to containers",
            "install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure --runtime=docker` "
            f"and restart Docker; or {gpus.CPU_INSTEAD}",
        )
    else:
        yield ok("Docker answers" + (", with NVIDIA's runtime" if has_nvidia else ""))
