"""The loop beside its alternatives: the figures of a run, and its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from generation import page
from generation.page import SentenceComparison
from generation.sentences import AGREES
from generation.served import (
    BEAMS,
    BLS,
    FIRST_PIECE_MS,
    IN_PROCESS,
    JOINING,
    LOOP,
    NOT_JOINING,
    STREAMED,
)
from generation.web_app import WEB
from generation.without_triton import EAGER, ENCODER_MS, FASTAPI, PYTHON, STEP_MS
from harness.load import BenchLoad, BenchWindow


def window(
    arm: str, level: int, turn: int, rate: int, took_ms: float = 10.0, **figures: float
) -> BenchWindow:
    load = BenchLoad(arm, "sentences", level)
    return BenchWindow(load, 1.0, (took_ms,) * rate, 0.0, figures=figures, turn=turn)


def some_windows() -> list[BenchWindow]:
    """Two turns of everybody; in the second all are half as fast."""
    rates = {
        (LOOP, 1): 10,
        (LOOP, 8): 12,
        (BLS, 8): 60,
        (IN_PROCESS, 1): 60,
        (IN_PROCESS, 8): 130,
        (BEAMS, 8): 52,
        (f"{PYTHON}, threads: 1", 8): 100,
        (f"{PYTHON}, threads: 2", 8): 150,
        (EAGER, 8): 90,
        (f"{FASTAPI}, float32, 1 × 2", 8): 100,
        (f"{FASTAPI}, int8, 1 × 2", 8): 200,
        (IN_PROCESS, 16): 140,
        (f"{FASTAPI}, int8, 1 × 2", 16): 100,
    }
    found = []
    for turn in range(2):
        found += [window(arm, level, turn, rate // (turn + 1)) for (arm, level), rate in rates.items()]
        found.append(window(STREAMED, 1, turn, 50, **{FIRST_PIECE_MS: 4.0}))
        found.append(window(WEB, 1, turn, 50, **{FIRST_PIECE_MS: 9.0}))
        parts = {ENCODER_MS: 2.0, STEP_MS: 1.0, AGREES: 0.995}
        found.append(window(f"{PYTHON}, threads: 1", 1, turn, 70, **parts))
    return found


def comparison(found: list[BenchWindow]) -> SentenceComparison:
    return SentenceComparison(found, sentences=20, pieces=7.5, turns=2, window_s=4.0)


def test_ratios_are_taken_turn_by_turn_against_the_best_of_each_kind() -> None:
    stated = {goal.what: goal for goal in page.goals(comparison(some_windows()))}
    assert stated["loop in process ÷ loop in the client, c=1"].per_turn == (6.0, 6.0)
    assert stated["loop in process ÷ loop in the client, c=1"].met is True
    assert stated["loop in process ÷ loop in BLS, c=8"].met is True
    assert stated["four beams ÷ greedy, c=8"].per_turn == (0.4, 0.4)
    assert stated["loop in process ÷ in Python, no server, best threads, c=8"].per_turn[0] == pytest.approx(
        130 / 150
    )
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, float32, best layout, c=8"].met is True
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, int8, best layout, c=8"].met is False
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, int8, best layout, c=16"].met is True
    assert stated["first piece, less the encoder, in steps of a decoder"].per_turn == (2.0, 2.0)
    assert stated["the same by the web app's API"].per_turn == (7.0, 7.0)
    (beside,) = page.goals(
        comparison([window(JOINING, 8, 0, 50, 25.0), window(NOT_JOINING, 8, 0, 50, 100.0)])
    )
    assert (beside.per_turn, beside.met) == ((0.25,), True)  # by a percentile


def test_a_disturbed_arm_is_marked_and_what_is_wanted_of_it_not_judged() -> None:
    found = [replace(each, foreign_cores=0.5) if each.load.arm == EAGER else each for each in some_windows()]
    text = page.as_markdown(comparison(found))
    assert f"| {EAGER} * | 8 |" in text
    assert text.count("not judged: disturbed") == 1
    assert "not judged" not in page.as_markdown(comparison(some_windows()))


def test_the_page_keeps_what_people_wrote_and_gets_a_picture(tmp_path: Path) -> None:
    path = tmp_path / page.PART.page
    begin = f"<!-- from here on written by `{page.PART.command}` -->"
    path.write_text(f"# Generation\n\nbefore\n{begin}\nold\n<!-- {page.PART.end} -->\nafter\n")
    page.write(comparison(some_windows()), tmp_path)
    text = path.read_text()
    assert ("before" in text, "after" in text, "old" in text) == (True, True, False)
    assert "| loop in process | 8 | 97.5 (65.0–130.0) |" in text
    assert (tmp_path / page.PICTURE).read_text().startswith("<svg")
