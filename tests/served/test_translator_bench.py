"""The translator's scenario, shortened, on its own Triton; `make nightly` runs benchmarks/generation."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gourmet.cli import main
from gourmet.measure import results
from gourmet.measure.scenarios import loops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = ["--rows", "4", "--window", "0.3", "--windows", "2", "--warm-up", "0.1", "--steady", "95"]


def test_every_place_of_the_loop_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_LEVELS", (1, 4))
    monkeypatch.setattr(loops, "_DELAYS_US", (0, 2000))
    options = [*QUICK, "--attempts", "9", "--save", str(tmp_path)]
    result = CliRunner().invoke(main, ["bench", "scenario", "translator", *options])
    assert (tmp_path / "bench.json").exists(), result.output
    measured = results.read(tmp_path / "bench.json")
    arms = {point.arm for point in measured.points}
    assert {"loop in the client", "loop in BLS", "loop in process"} <= arms
    assert len({point.name for point in measured.points if point.arm.startswith("a step")}) >= 6
    assert any("loop in process ÷ loop in the client" in goal.what for goal in measured.goals)
    assert "answers were checked first" in measured.about
    looped = [point for point in measured.points if point.arm == "loop in the client"]
    assert all(point.split_ms.server > 0 for point in looped)
