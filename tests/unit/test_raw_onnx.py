"""Raw ONNX Runtime as a bar: arms run for real, answers are compared, numbers come from a pure function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from gourmet.bench import raw_onnx
from gourmet.bench.raw_onnx import Arm, RawOnnxError, Turn


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


def test_every_arm_runs_and_reports(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "Relu")
    arms, told = (Arm(1, 1), Arm(2, 1)), []

    report = raw_onnx.measure(
        model, {"x": np.ones((1, 4), np.float32)}, seconds=0.1, turns=2, arms=arms, on_turn=told.append
    )

    assert told == [*arms, *arms]
    assert [result.arm for result in report.arms] == list(arms)
    assert report.single.arm == Arm(1, 1)
    for result in report.arms:
        assert result.runs > 10
        assert result.runs_per_s > 100
        assert 0 < result.p50_ms <= result.p95_ms <= result.p99_ms


def test_arms_that_answer_differently_are_not_measured(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "RandomNormalLike")
    with pytest.raises(RawOnnxError, match="2 sessions × 1 thread and 1 session × 1 thread answer"):
        raw_onnx.measure(
            model, {"x": np.ones((1, 4), np.float32)}, seconds=0.05, turns=1, arms=(Arm(1, 1), Arm(2, 1))
        )


@pytest.mark.parametrize(
    ("content", "feeds", "says"),
    [(None, {}, "there is no ONNX file at"), (b"no model", {}, "cannot be run by ONNX Runtime")],
)
def test_a_file_that_cannot_be_run_is_named(
    tmp_path: Path, content: bytes | None, feeds: raw_onnx.Feeds, says: str
) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RawOnnxError, match=says):
        raw_onnx.measure(path, feeds, seconds=0.05, turns=1, arms=(Arm(1, 1),))


def test_throughput_counts_the_runs_of_all_processes_over_the_turn_they_share() -> None:
    def seen(started: float, ended: float, *latencies_s: float) -> Turn:
        return Turn(started, ended, np.array(latencies_s), [])

    result = raw_onnx.summarise(
        Arm(2, 1),
        [[seen(10, 12, 0.5, 0.5, 1.0), seen(10.5, 13, 1.0, 1.5)], [seen(0, 2, 2.0), seen(0, 2, 2.0)]],
    )

    assert result.runs == 7
    assert result.runs_per_s == 7 / (3 + 2)
    assert result.p50_ms == 1000
    assert result.mean_ms == pytest.approx(8500 / 7)


@pytest.mark.parametrize(
    ("cpus", "arms"),
    [(1, (Arm(1, 1),)), (2, (Arm(1, 1), Arm(1, 2), Arm(2, 1))), (8, (Arm(1, 1), Arm(1, 8), Arm(8, 1)))],
)
def test_the_usual_arms_fill_the_machine(cpus: int, arms: tuple[Arm, ...]) -> None:
    assert raw_onnx.usual_arms(cpus) == arms
