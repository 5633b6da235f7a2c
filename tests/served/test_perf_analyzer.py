"""The real perf_analyzer against a real Triton."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from gourmet.errors import GourmetError
from gourmet.measure import perf_analyzer
from gourmet.measure.perf_analyzer import PerfLoad
from gourmet.measure.results import LoadSpec
from gourmet.measure.validity import Disturbed


@pytest.fixture(scope="module")
def tripler(onnx_lab: Any) -> str:
    """A model so small that nearly all of a request is the way to it and back."""
    onnx_lab.serve("tripler", "(float[rows, 3] x) => (float[rows, 3] y) { y = Sum(x, x, x) }")
    return "tripler"


def short(load: LoadSpec, url: str, **more: Any) -> PerfLoad:
    """A load whose figures nobody needs to believe: it must end quickly on a busy machine."""
    return PerfLoad(load, url, window_ms=400, stability_percent=999, **more)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("more", [{}, {"level": 2, "batch": 2, "shared_memory": True}], ids=["plain", "more"])
def test_a_load_is_measured(
    lab_triton: Any, tripler: str, protocol: Literal["http", "grpc"], more: dict[str, Any]
) -> None:
    url = lab_triton.http_url if protocol == "http" else lab_triton.grpc_url
    got = perf_analyzer.profile(short(LoadSpec(tripler, protocol=protocol, **more), url)).measured
    assert got.rows_per_s > 20
    assert got.requests_per_s == got.rows_per_s / more.get("batch", 1)
    assert 0 < got.p50_ms <= got.p90_ms <= got.p95_ms <= got.p99_ms
    assert 0 < got.compute_infer_ms < got.server_ms


def test_rows_come_from_a_file_and_nothing_is_left_behind(
    lab_triton: Any, tripler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "input.json"
    data.write_text(json.dumps({"data": [{"x": {"content": [1.0, 2.0, 3.0], "shape": [3]}}]}))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    got = perf_analyzer.profile(short(LoadSpec(tripler), lab_triton.http_url, input_data=data))
    assert got.measured.rows_per_s > 20
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"load": {"model": "nobody"}},
            "on nobody at .* failed to get model metadata: .*unknown model: 'nobody'",
        ),
        ({"url": "127.0.0.1:1"}, "at 127.0.0.1:1 .*connect"),
        ({"input_data": Path("/nowhere.json")}, r"Failed to parse --input-data.*json file\.$"),
        ({"load": {"batch": 99}}, "batch-size must be <= 4"),
        ({"timeout_s": 0.01}, "did not end within 0 s"),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_what_goes_wrong_is_said_in_its_own_words(
    lab_triton: Any, tripler: str, more: dict[str, Any], says: str
) -> None:
    load = LoadSpec(**{"model": tripler, **more.get("load", {})})
    run = PerfLoad(**{"url": lab_triton.http_url, "window_ms": 300, **more, "load": load})
    with pytest.raises(GourmetError, match=says):
        perf_analyzer.profile(run)


def test_windows_that_never_agree_may_be_measured_again(lab_triton: Any, tripler: str) -> None:
    load = PerfLoad(
        LoadSpec(tripler), lab_triton.http_url, window_ms=300, max_windows=3, stability_percent=0.0001
    )
    with pytest.raises(Disturbed, match=r"no 3 windows of 3 in a row came within 0\.0001%"):
        perf_analyzer.profile(load)
