"""The real perf_analyzer against a real Triton."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from gourmet.errors import GourmetError
from gourmet.measure import perf_analyzer
from gourmet.measure.results import LoadSpec
from gourmet.measure.validity import Disturbed

# Figures that nobody needs to believe: a run must end quickly on a busy machine.
STEADY = 9.99


@pytest.fixture(scope="module")
def tripler(onnx_lab: Any) -> str:
    """A model so small that nearly all of a request is the way to it and back."""
    onnx_lab.serve("tripler", "(float[rows, 3] x) => (float[rows, 3] y) { y = Sum(x, x, x) }")
    return "tripler"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("more", [{}, {"level": 2, "batch": 2, "shared_memory": True}], ids=["plain", "more"])
def test_a_load_is_measured_and_nothing_is_left_behind(
    lab_triton: Any,
    tripler: str,
    protocol: Literal["http", "grpc"],
    more: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = tmp_path / "input.json"
    data.write_text(json.dumps({"data": [{"x": {"content": [1.0, 2.0, 3.0], "shape": [3]}}]}))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    url = lab_triton.http_url if protocol == "http" else lab_triton.grpc_url
    got = perf_analyzer.profile(LoadSpec(tripler, protocol=protocol, **more), url, 0.4, STEADY, data)
    assert got.rows_per_s > 20
    assert got.requests_per_s == got.rows_per_s / more.get("batch", 1)
    took, split = got.latency_ms, got.split_ms
    assert 0 < took.p50 <= took.p90 <= took.p95 <= took.p99
    assert 0 < split.infer < split.server < took.mean
    assert (len(got.windows), got.requests > 10) == (3, True)
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize(
    ("load", "port", "rows", "says"),
    [
        ({"model": "nobody"}, None, None, "on nobody at .* failed to get .*unknown model: 'nobody'"),
        ({}, 1, None, "at 127.0.0.1:1 .*connect"),
        ({}, None, Path("/nowhere.json"), r"Failed to parse --input-data.*json file\.$"),
        ({"batch": 99}, None, None, "batch-size must be <= 4"),
    ],
    ids=["model", "url", "rows", "batch"],
)
def test_what_goes_wrong_is_said_in_its_own_words(
    lab_triton: Any, tripler: str, load: dict[str, Any], port: int | None, rows: Path | None, says: str
) -> None:
    url = f"127.0.0.1:{port}" if port else lab_triton.http_url
    with pytest.raises(GourmetError, match=says):
        perf_analyzer.profile(LoadSpec(**{"model": tripler, **load}), url, 0.3, STEADY, rows)


def test_what_goes_on_for_too_long_is_ended(
    lab_triton: Any, tripler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf_analyzer, "_TIMEOUT_S", 0.01)
    with pytest.raises(GourmetError, match="it ended with status -9"):
        perf_analyzer.profile(LoadSpec(tripler), lab_triton.http_url, 0.3, STEADY)


def test_windows_that_never_agree_may_be_measured_again(
    lab_triton: Any, tripler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf_analyzer, "_MAX_WINDOWS", 3)
    with pytest.raises(Disturbed, match="no 3 windows of 3 in a row agreed"):
        perf_analyzer.profile(LoadSpec(tripler), lab_triton.http_url, 0.3, 1e-6)
