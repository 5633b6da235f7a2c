"""From which score on answers are called sure: the choice, and what is measured with it."""

from __future__ import annotations

import pytest

from gourmet.contracts import GeneratedText, ModelInfo, ScoredSentence
from gourmet.evaluation.text_certainty import NEVER, PRECISION, Judged, certainty, chosen


def judged(score: float, is_near: bool, warning: str = "") -> Judged:
    return Judged(GeneratedText("a", 1, score, warning=warning), is_near)


# The lower the score, the more answers are wrong: from none at 0 to all at -1.
FALLING = [judged(-place / 1000, (place * 7919) % 1000 >= place) for place in range(1000)]


def test_the_share_of_near_answers_above_the_threshold_meets_the_goal_by_its_lower_bound() -> None:
    result = certainty("chosen on", {"chosen on": FALLING})
    threshold, part = result.measures["threshold"], result.measures["parts"]["chosen on"]
    assert part["least"] >= PRECISION
    assert part["near"] > part["least"]
    # One that is lower has too few.
    below = [answer.is_near for answer in FALLING if answer.score >= threshold - 0.05]
    assert sum(below) / len(below) < part["near"]
    bare = chosen(
        [answer.score for answer in FALLING], [answer.is_near for answer in FALLING], PRECISION, errors=0
    )
    assert bare < threshold


def test_few_answers_or_an_uninformative_score_give_no_threshold() -> None:
    assert chosen([-0.1] * 10, [True] * 10, PRECISION) == NEVER
    assert chosen([-0.1, -0.2], [True, True], PRECISION, errors=0) == -0.2
    blind = [judged(-rank / 1000, rank % 2 == 0) for rank in range(1000)]
    result = certainty("v", {"v": blind})
    assert (result.measures["threshold"], result.measures["parts"]["v"]["sure"]) == (NEVER, 0.0)
    assert "never: no score is high enough for 80% near answers" in result.lines()[0]


def test_an_answer_with_a_warning_is_not_sure_and_not_used_for_calibration() -> None:
    warned = [judged(-0.001, is_near=True, warning="not Russian") for _ in range(1000)]
    result = certainty("v", {"v": [*FALLING, *warned]}).measures
    without = certainty("v", {"v": FALLING}).measures
    assert result["threshold"] == without["threshold"]
    assert result["parts"]["v"]["doubtful"] == 1000
    assert result["parts"]["v"]["sure"] == pytest.approx(without["parts"]["v"]["sure"] / 2)


def test_sure_is_unknown_without_a_threshold_and_otherwise_follows_the_worst_sentence() -> None:
    sentences = [ScoredSentence(0, 1, -0.1), ScoredSentence(2, 3, -0.9)]
    answer = GeneratedText("a b", 4, -0.4, sentences=sentences)
    model = ModelInfo("m", (), (), {"threshold": "-0.5"})
    assert ModelInfo("m", (), ()).is_sure(answer) is None
    assert model.is_sure(answer) is False
    assert model.is_sure(GeneratedText("a b", 4, -0.4)) is True
    assert model.is_sure(GeneratedText("a b", 4, -0.4, warning="a number is missing")) is False
    assert model.is_sure(GeneratedText("a b")) is None
