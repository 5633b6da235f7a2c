"""`gourmet bench run --through app`: photos through the real web app, in front of a real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gourmet.bench.results import read_results
from gourmet.cli import main


@pytest.fixture
def bench(triton: Any, python_web: Any) -> Any:
    def run(model: str, *arguments: str) -> Result:
        to = [
            "--url",
            triton.http_url,
            "--app-url",
            python_web.url.removeprefix("http://"),
            "--through",
            "app",
        ]
        quick = ["--rows", "4", "--window", "1.5", "--windows", "2", "--warm-up", "0.2", "--steady", "95"]
        return CliRunner().invoke(main, ["bench", "run", model, *to, *quick, "--attempts", "8", *arguments])

    return run


def test_photos_go_through_the_app(bench: Any, tmp_path: Path) -> None:
    result = bench("food_classifier", "--concurrency", "2", "--save", str(tmp_path))
    assert result.exit_code == 0, result.output
    (point,) = read_results(tmp_path / "bench.json").points
    assert point.load.through == "app"
    assert point.usage.app_memory_mib is not None
    assert point.usage.app_memory_mib > 20
    assert point.split_ms.network > 0


def test_the_app_is_asked_for_the_measured_model_and_its_refusal_is_reported(
    bench: Any, tmp_path: Path
) -> None:
    result = bench("food_classifier_onnx", "--save", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert read_results(tmp_path).points[0].load.model == "food_classifier_onnx"
    result = bench("digits")
    assert result.exit_code == 1
    assert "HTTP 4" in result.output
    assert "digits" in result.output
