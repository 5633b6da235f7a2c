"""`gourmet perf-analyzer` without a server; tests/served/test_perf_analyzer.py has one."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path


def test_help_is_ours_and_behind_two_dashes_nvidia_s_and_neither_is_an_error() -> None:
    gourmet = str(Path(sysconfig.get_path("scripts"), "gourmet"))
    ours = subprocess.run([gourmet, "perf-analyzer", "--help"], capture_output=True, text=True)
    assert (ours.returncode, "Run NVIDIA's perf_analyzer" in ours.stdout) == (0, True)
    theirs = subprocess.run([gourmet, "perf-analyzer", "--", "--help"], capture_output=True, text=True)
    assert (theirs.returncode, "--concurrency-range" in theirs.stdout + theirs.stderr) == (0, True)
