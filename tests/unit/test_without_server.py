"""Raw ONNX Runtime as a bar: layouts run for real, answers are compared, figures are a pure function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from gourmet.errors import GourmetError
from gourmet.measure import without_server
from gourmet.measure.without_server import Layout


def write(path: Path, operator: str) -> Path:
    """A model with `x` and `y` [rows, 4] and one operator between them."""
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 17]>'
            f"test (float[rows, 4] x) => (float[rows, 4] y) {{ y = {operator}(x) }}"
        ),
        path,
    )
    return path


def test_every_layout_runs_and_reports(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "Relu")
    layouts = (Layout(1, 1), Layout(2, 1))

    results = without_server.measure(model, {"x": np.ones((1, 4), np.float32)}, seconds=0.1, layouts=layouts)

    assert [result.layout for result in results] == list(layouts)
    for result in results:
        assert result.runs_per_s > 100
        assert 0 < result.p50_ms < 100


def test_layouts_that_answer_differently_are_not_measured(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "RandomNormalLike")
    with pytest.raises(GourmetError, match="2 sessions × 1 thread and 1 session × 1 thread answer"):
        without_server.measure(
            model,
            {"x": np.ones((1, 4), np.float32)},
            seconds=0.05,
            layouts=(Layout(1, 1), Layout(2, 1)),
        )


def test_a_file_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(GourmetError, match=r"m\.onnx cannot be run without a server"):
        without_server.measure(path, {}, seconds=0.05, layouts=(Layout(1, 1),))


def test_throughput_counts_the_runs_of_all_sessions_over_the_time_they_share() -> None:
    moments = [np.array([10, 10.5, 11, 12]), np.array([10.5, 11.5, 13])]

    result = without_server.summarise(Layout(2, 1), moments)

    assert result.runs_per_s == 5 / 3
    assert result.p50_ms == 1000
    assert result.mean_ms == pytest.approx(900)


@pytest.mark.parametrize(
    ("cpus", "layouts"),
    [
        (1, (Layout(1, 1),)),
        (2, (Layout(1, 1), Layout(1, 2), Layout(2, 1))),
        (8, (Layout(1, 1), Layout(1, 8), Layout(8, 1))),
    ],
)
def test_the_usual_layouts_fill_the_machine(cpus: int, layouts: tuple[Layout, ...]) -> None:
    assert without_server.usual_layouts(cpus) == layouts
