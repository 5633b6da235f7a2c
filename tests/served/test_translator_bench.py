"""The translator's scenario and its comparison, in a short form, on a Triton of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from generation import in_python, served
from generation.served import BLS, IN_PROCESS, JOINING, LOOP, NOT_JOINING, STREAMED, Sentences
from generation.windows import Key
from gourmet.cli import main
from gourmet.measure import results
from gourmet.measure.task import MeasureOptions
from gourmet.systems.translator.contract import SYSTEM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = ["--rows", "4", "--window", "0.3", "--windows", "2", "--warm-up", "0.1", "--steady", "95"]
EFFORT = MeasureOptions(window_s=0.8, windows=1, warm_up_s=0.2)


def scenario(folder: Path, kept: Path) -> results.Bench:
    options = [*QUICK, "--client", "gourmet", "--attempts", "9", "--resume", str(kept), "--json"]
    command = ["bench", "scenario", "translator", *options, "--save", str(folder)]
    result = CliRunner().invoke(main, command)
    assert (folder / "bench.json").exists(), result.output
    return results.read(folder / "bench.json")


def test_the_loop_is_measured_wherever_it_is_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    first = scenario(tmp_path / "first", tmp_path / "kept")
    arms = {point.arm for point in first.points}
    assert {"loop in the client", "loop in BLS", "loop in process"} <= arms
    assert len({point.name for point in first.points if point.arm.startswith("a step")}) >= 30
    assert any("loop in process ÷ loop in the client" in goal.what for goal in first.goals)
    assert "answers were checked first" in first.about
    looped = [point for point in first.points if point.arm == "loop in the client"]
    assert all(point.split_ms.server > 0 for point in looped)
    kept = sorted((tmp_path / "kept").glob("*.json"))
    kept[-2].unlink()  # the last but the plan
    again = scenario(tmp_path / "again", tmp_path / "kept")
    same = [a for a, b in zip(first.points, again.points, strict=False) if a == b]
    assert len(same) >= len(first.points) - 2


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Sentences:
    folder = tmp_path_factory.mktemp("sentences")
    usual = [text.decode() for text in SYSTEM.examples(6, seed=1)]
    long = ", ".join(text.rstrip(".?!").lower() for text in usual) + "."
    for name, texts in (("usual", usual), ("mixed", [*usual[:3], long, *usual[3:], long.capitalize()])):
        (folder / name).mkdir()
        for number, text in enumerate(texts):
            (folder / name / f"{number}.txt").write_text(text, encoding="utf-8")
    return Sentences(folder / "usual", folder / "mixed")


def test_the_ways_through_triton_say_the_same_and_what_each_takes(sentences: Sentences) -> None:
    with served.serving(sentences, EFFORT) as bench:
        said = {arm.name: bench.answers(arm) for arm in served.ARMS}
        looped, scripted, inside, streamed = (
            bench.window(arm, Key(0, arm.name, 2)) for arm in (LOOP, BLS, IN_PROCESS, STREAMED)
        )
        joining, waiting = (bench.mixed(off, Key(0, arm, 6)) for arm, off in (JOINING, NOT_JOINING))
    assert said[IN_PROCESS.name] == said[STREAMED.name]
    assert len(set(said[IN_PROCESS.name])) > 3
    assert looped.figures["requests"] > 3
    assert looped.figures["bytes"] > 1000 * inside.figures["bytes"]
    assert scripted.figures["requests inside"] > 3
    assert inside.figures["requests inside"] == 0
    assert 0 < streamed.figures["first piece ms"] < streamed.p99_ms
    assert joining.answers
    assert waiting.answers


def test_the_loop_in_python_says_what_the_served_one_says() -> None:
    here = in_python.InPython(served.INSIDE, 1)
    try:
        texts = [text.decode() for text in SYSTEM.examples(4, seed=2)]
        right = [here.answer(text) for text in texts]

        def once(number: int) -> int:
            in_python.checked([here.answer(texts[number % 4])], [right[number % 4]], "here")
            return 1

        found = in_python.window(Key(0, "here", 2), EFFORT, once, 2, here.parts_ms(texts[0]))
    finally:
        here.close()
    assert found.answers > 3
    assert found.figures["step ms"] < found.figures["encoder ms"] * 10
