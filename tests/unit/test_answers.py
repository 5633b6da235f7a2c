"""Verdicts on a picture from its probabilities and the probability that it shows the subject."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gourmet.pictures.certainty import RankedLabels


@dataclass(frozen=True)
class Answer(RankedLabels):
    probabilities: tuple[float, ...]
    relevance: float | None = 0.99
    labels: tuple[str, ...] = ("Bread", "Dessert", "Soup")
    threshold: float = 0.8
    subject_threshold: float = 0.5


@pytest.mark.parametrize(
    ("answer", "relevant", "doubtful", "sure", "candidates"),
    [
        (Answer((0.9, 0.05, 0.05)), True, False, True, []),
        (Answer((0.5, 0.4, 0.1)), True, False, False, ["Bread", "Dessert"]),
        (Answer((0.5, 0.3, 0.2)), True, False, False, []),
        (Answer((0.9, 0.05, 0.05), relevance=0.6), True, True, False, ["Bread", "Dessert"]),
        (Answer((0.9, 0.05, 0.05), relevance=0.4), False, False, False, []),
        (Answer((0.9, 0.05, 0.05), relevance=None), True, False, True, []),
    ],
    ids=[
        "sure",
        "two share it",
        "not sure",
        "it may show something else",
        "it shows something else",
        "no subject",
    ],
)
def test_an_answer_states_how_sure_it_is(
    answer: Answer, relevant: bool, doubtful: bool, sure: bool, candidates: list[str]
) -> None:
    assert (answer.relevant, answer.doubtful, answer.sure) == (relevant, doubtful, sure)
    assert [label for label, _ in answer.candidates] == candidates
