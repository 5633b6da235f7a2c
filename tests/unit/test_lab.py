"""The lab's questions and verdicts, without a server."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from support.triton import ROOT

from gourmet.bench.results import Estimate
from gourmet.errors import UsageError
from gourmet.lab import exercises
from gourmet.lab.exercises import Exercise, explanations, judged, predict
from gourmet.lab.measuring import Figure

TEXTS = {"unit": "times", "1.2": "low", "2": "middle", "otherwise": "high of {cores}"}


@pytest.mark.parametrize(
    ("figure", "words", "explanation"),
    [
        (Estimate(1.0, 0.9, 1.1), "as you predicted", "low"),
        (Estimate(1.7, 1.6, 1.8), "more than you predicted", "middle"),
        (Estimate(0.4), "less than you predicted", "low"),
        (Estimate(9.0, 8.0, 10.0), "more than you predicted", "high of "),
        (Estimate(1.3, 1.1, 1.6), "undecided here: the interval lies across an edge", "low — or, which the"),
    ],
)
def test_a_verdict_follows_the_interval_and_the_explanation_the_figure(
    figure: Estimate, words: str, explanation: str
) -> None:
    verdict = judged((0.8, 1.4), Figure(figure), TEXTS)
    assert verdict.words.startswith(words)
    assert verdict.explanation.startswith(explanation)


def test_a_disturbed_figure_is_undecided_whatever_it_is() -> None:
    verdict = judged((0, 9), Figure(Estimate(1.0, 0.9, 1.1), "other programs used 1.5 of 2 cores"), TEXTS)
    assert verdict.words == "undecided here"
    assert "other programs used 1.5 of 2 cores" in verdict.explanation


@pytest.mark.parametrize(
    ("question", "low", "high", "refusal"),
    [
        ("9z: what?", 1, 2, "'9z' is not a question of exercise 3: 3a, 3b, 3c"),
        ("3a: what?", 2, 1, "3a: low and high must be two numbers, the lower first; they are 2 and 1"),
        ("3a: what?", "much", 1, "3a: low and high must be two numbers"),
    ],
)
def test_an_invalid_prediction_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, question: str, low: float, high: float, refusal: str
) -> None:
    monkeypatch.setenv("GOURMET_LAB", str(tmp_path))
    monkeypatch.setattr(exercises, "_exercise", Exercise("nowhere", "3"))
    with pytest.raises(UsageError, match=re.escape(refusal)):
        predict(question, low, high)


def test_the_committed_notebooks_give_no_answer_away_and_ask_all_questions() -> None:
    all_questions, boxes = [], 0
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") for cell in cells)
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        questions = re.findall(r'^predict\("(\w+): .*", \.\.\., \.\.\.\)$', text, re.MULTILINE)
        assert sorted(questions) == sorted(re.findall(r'answer\("(\w+)"', text))
        all_questions += questions
        exercises_of = [cell for cell in cells if re.match(r"## L?\d", cell.source)]
        boxes += len([cell for cell in cells if cell.metadata.get("tags") == ["box"]]) - len(exercises_of)
    assert sorted(all_questions) == sorted(explanations())
    assert boxes == 0
