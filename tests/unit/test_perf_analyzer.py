"""perf_analyzer as a function: the command line of a load, and its report read back."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from gourmet.errors import GourmetError
from gourmet.measure import perf_analyzer
from gourmet.measure.results import Latency, Split

# As the real program wrote it.
REPORT = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "2,199.5,68,413,11,12,161,33,1,400,979,1651,9834\n"
)


def test_a_report_is_read_in_milliseconds_and_rows() -> None:
    got = perf_analyzer.parse(REPORT, 4)
    assert (got.batch, got.rows_per_s, got.requests_per_s) == (4, 199.5, 49.875)
    split = Split(0.011, 0.012, 0.161, 0.033, 0.068 + 0.413 + 0.001)
    assert vars(got.split_ms) == pytest.approx(vars(split))
    mean = split.server + split.network
    assert vars(got.latency_ms) == pytest.approx(vars(Latency(mean, 0.4, 0.979, 1.651, 9.834)))


@pytest.mark.parametrize("report", ["", REPORT.splitlines()[0], REPORT.replace("Server Queue", "Queue")])
def test_a_report_of_another_form_is_refused(report: str) -> None:
    with pytest.raises(GourmetError, match="report has not one whole row"):
        perf_analyzer.parse(report, 1)


def test_help_is_ours_and_behind_two_dashes_nvidia_s_and_neither_is_an_error() -> None:
    gourmet = str(Path(sysconfig.get_path("scripts"), "gourmet"))
    ours = subprocess.run([gourmet, "perf-analyzer", "--help"], capture_output=True, text=True)
    assert (ours.returncode, "Run NVIDIA's perf_analyzer" in ours.stdout) == (0, True)
    theirs = subprocess.run([gourmet, "perf-analyzer", "--", "--help"], capture_output=True, text=True)
    assert (theirs.returncode, "--concurrency-range" in theirs.stdout + theirs.stderr) == (0, True)
