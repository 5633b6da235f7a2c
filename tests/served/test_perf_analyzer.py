"""`gourmet perf-analyzer`: the real program against a real Triton."""

from __future__ import annotations

import re
import subprocess

import pytest
from support.triton import RunningTriton
from support.up import GOURMET

# A run must end quickly on a busy machine, and its figures are of no interest.
QUICK = ("--measurement-mode=count_windows", "--measurement-request-count=9", "--stability-percentage=999")


def perf_analyzer(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [GOURMET, "perf-analyzer", *words, *QUICK]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240)


@pytest.mark.promise("README: NVIDIA's perf_analyzer runs with what it needs")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_default_model_is_sent_the_sample_photo(triton: RunningTriton, protocol: str) -> None:
    url = triton.http_url if protocol == "http" else triton.grpc_url
    done = perf_analyzer("-m", "food_classifier", "-i", protocol, "-u", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.findall(r"throughput: ([\d.]+) infer/sec", done.stdout)[-1]) > 0


def test_a_missing_model_is_reported_with_perf_analyzer_s_message(triton: RunningTriton) -> None:
    done = perf_analyzer("-m", "nobody", "-u", triton.http_url)
    assert done.returncode != 0
    assert "unknown model: 'nobody'" in done.stdout + done.stderr
