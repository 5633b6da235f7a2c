"""`gourmet bench run` on a model that answers in pieces: when they come, and whether they are right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.triton import ROOT, RunningTriton, run_triton

from gourmet.cli import main
from gourmet.measure.results import Point, read

SUPPORT = ROOT / "tests" / "support"
PAUSE_S = 0.02
QUICK = ["--rows", "6", "--window", "0.8", "--windows", "2", "--warm-up", "0.2", "--steady", "95"]


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """The text system of the tests, slowed down, and a copy of its model that now and then loses a word."""
    models = tmp_path_factory.mktemp("models") / "models"
    shutil.copytree(SUPPORT / "models", models)
    losing = shutil.copytree(models / "echo_stream", models / "echo_losing")
    source = (losing / "1" / "model.py").read_text()
    faulty = source.replace("pieces(*inputs(request))", "self._some(request)")
    assert faulty != source
    method = """
    def _some(self, request):
        self.asked = getattr(self, "asked", 0) + 1
        found = pieces(*inputs(request))
        return found[:-1] if self.asked % 9 == 0 and len(found) > 1 else found
"""
    faulty = faulty.replace("\n\ndef inputs(", f"{method}\n\ndef inputs(")
    (losing / "1" / "model.py").write_text(faulty)
    config = (losing / "config.pbtxt").read_text()
    (losing / "config.pbtxt").write_text(config.replace("echo_stream", losing.name))
    with pytest.MonkeyPatch.context() as env:
        env.setenv("GOURMET_SYSTEMS", str(SUPPORT / "systems"))
        env.setenv("ECHO_PAUSE_S", str(PAUSE_S))
        yield from run_triton(models)


def bench(server: RunningTriton, model: str, *arguments: str) -> Result:
    to = ["--url", server.http_url, "--grpc-url", server.grpc_url]
    return CliRunner().invoke(main, ["bench", "run", model, *to, *QUICK, *arguments])


def measured(server: RunningTriton, folder: Path, *arguments: str) -> tuple[Point, str]:
    result = bench(server, "echo_stream", "--attempts", "6", "--save", str(folder), *arguments)
    assert result.exit_code == 0, result.output
    (point,) = read(folder / "bench.json").points
    return point, result.output


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_first_piece_and_those_after_it_are_timed(
    echoing: RunningTriton, tmp_path: Path, protocol: str
) -> None:
    point, output = measured(echoing, tmp_path, "--protocol", protocol)
    assert point.stream is not None
    assert point.stream.between_ms is not None
    assert point.stream.between_ms.p50 > 500 * PAUSE_S
    # The model pauses before each further piece.
    assert point.latency_ms.p50 > point.stream.first_ms.p50 + 1000 * PAUSE_S
    answers_per_s = point.rows_per_s.value
    per_answer = point.stream.pieces_per_answer
    assert 1 < per_answer < 12
    assert point.stream.pieces_per_s.value == pytest.approx(answers_per_s * per_answer, rel=0.5)
    checks = {check.name for check in point.checks}
    assert {"answers", "rows counted by Triton", "Little's law"} <= checks
    assert "first piece p50 ms" in output
    assert "Pieces of answers" in (tmp_path / "index.html").read_text()


def test_an_answer_that_lacks_a_piece_ends_the_run(echoing: RunningTriton, tmp_path: Path) -> None:
    result = bench(echoing, "echo_losing", "--save", str(tmp_path / "run"))
    assert result.exit_code == 1
    assert "is not the one expected" in result.output
    assert not (tmp_path / "run").exists()


def test_unsupported_options_of_a_stream_are_refused(echoing: RunningTriton) -> None:
    result = bench(echoing, "echo_stream", "--batch", "2")
    assert (result.exit_code, "takes one input a request" in result.output) == (2, True), result.output


def test_whole_answers_of_a_text_system_are_still_measured(echoing: RunningTriton, tmp_path: Path) -> None:
    result = bench(echoing, "echo", "--attempts", "6", "--save", str(tmp_path))
    assert result.exit_code == 0, result.output
    saved = read(tmp_path / "bench.json")
    assert saved.points[0].stream is None
    assert saved.data == "6 examples of Echo, seed 5"
