"""The translator's scenario and its comparison, in a short form, on a Triton of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from generation import served, without_triton
from generation.served import (
    BLS,
    IN_PROCESS,
    JOINING,
    LOOP,
    MEMORY_MIB,
    NOT_JOINING,
    STREAMED,
)
from gourmet import repository
from gourmet.cli import main
from gourmet.measure import results
from gourmet.measure.inputs import DataSource
from gourmet.measure.scenarios import loops
from gourmet.measure.task import MeasureOptions
from gourmet.systems.translator.contract import SYSTEM, TEXT
from gourmet.systems.translator.serving import SERVING
from harness.run import Contender
from harness.windows import FIRST_PIECE_MS, BenchWindow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = ["--rows", "4", "--window", "0.3", "--windows", "2", "--warm-up", "0.1", "--steady", "95"]
OPTIONS = MeasureOptions(window_s=0.8, windows=1, warm_up_s=0.2)


def test_the_loop_is_measured_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_LEVELS", (1, 4))
    monkeypatch.setattr(loops, "_DELAYS_US", (0, 2000))
    options = [*QUICK, "--attempts", "9", "--save", str(tmp_path)]
    result = CliRunner().invoke(main, ["bench", "scenario", "translator", *options])
    assert (tmp_path / "bench.json").exists(), result.output
    found = results.read(tmp_path / "bench.json")
    arms = {point.arm for point in found.points}
    assert {"loop in the client", "loop in BLS", "loop in process"} <= arms
    assert len({point.name for point in found.points if point.arm.startswith("a step")}) >= 6
    assert any("loop in process ÷ loop in the client" in goal.what for goal in found.goals)
    assert "answers were checked first" in found.about
    looped = [point for point in found.points if point.arm == "loop in the client"]
    assert all(point.split_ms.server > 0 for point in looped)


@dataclass
class ExampleSentences:
    """The system's own examples, for arms that need no checkpoint; `said` is what each arm answers alone."""

    folder: Path
    texts: Sequence[str]
    options: MeasureOptions = OPTIONS
    said: dict[str, Sequence[str]] = field(default_factory=dict)
    system: str = SYSTEM.name

    @property
    def examples(self) -> Sequence[str]:
        return self.texts

    def source(self, arm: str) -> DataSource:
        return self.mixed if arm in served.CONTINUOUS else self.usual

    def __post_init__(self) -> None:
        long = ", ".join(text.rstrip(".?!").lower() for text in self.texts) + "."
        self.usual = self._written("usual", self.texts)
        self.mixed = self._written("mixed", [*self.texts[:3], long, *self.texts[3:], long.capitalize()])

    def _written(self, name: str, texts: Sequence[str]) -> DataSource:
        (self.folder / name).mkdir()
        for number, text in enumerate(texts):
            (self.folder / name / f"{number}.txt").write_text(text, encoding="utf-8")
        return DataSource(len(texts), folder=self.folder / name)

    def agreement(self, arm: str, said: Sequence[str]) -> dict[str, float]:
        self.said[arm] = said
        return {}


@pytest.fixture
def sentences(tmp_path: Path) -> ExampleSentences:
    return ExampleSentences(tmp_path, [text.decode() for text in SYSTEM.examples(6, seed=1)])


def windows(contender: Contender) -> dict[tuple[str, int], BenchWindow]:
    with contender.start() as measure:
        return {(load.arm, load.level): measure(load) for load in contender.loads}


def test_the_ways_through_triton_say_the_same_and_what_each_takes(sentences: ExampleSentences) -> None:
    found = windows(served.contender(sentences))  # type: ignore[arg-type]
    assert sentences.said[IN_PROCESS] == sentences.said[STREAMED] == sentences.said[BLS]
    assert len(set(sentences.said[IN_PROCESS])) > 3
    looped, scripted, inside = (found[arm, 1].figures for arm in (LOOP, BLS, IN_PROCESS))
    assert looped["requests"] > 3
    assert looped["bytes"] > 1000 * inside["bytes"]
    assert scripted["requests inside"] > 3
    assert inside["requests inside"] == 0
    assert 50 < inside[MEMORY_MIB] < 2000
    streamed = found[STREAMED, 1]
    assert 0 < streamed.figures[FIRST_PIECE_MS] < streamed.percentiles_ms[2]
    for arm in (JOINING, NOT_JOINING):
        assert found[arm, served.MIXED_LEVEL].latencies_ms


def test_the_loop_in_python_says_the_same_alone_and_among_others(sentences: ExampleSentences) -> None:
    """A window whose answers are not those that were given alone is refused."""
    contender = without_triton.in_python(
        sentences, 1, SERVING, repository.served_package("translator"), TEXT, (1, 8)
    )
    found = windows(contender)
    assert len(set(sentences.said[contender.words])) > 3
    for window in found.values():
        assert len(window.latencies_ms) > 3
        assert window.figures[without_triton.STEP_MS] < window.figures[without_triton.ENCODER_MS] * 10
