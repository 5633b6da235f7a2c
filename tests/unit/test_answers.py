"""Verdicts on a picture from its probabilities and the probability that it shows the subject."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gourmet.pictures.certainty import RankedLabels, relevance, softmax
from gourmet.systems.food11.contract import SYSTEM


def answer_of(
    probabilities: tuple[float, ...], relevance: float | None = 0.99, dish: float = 0.0
) -> RankedLabels:
    labels = ("Bread", "Dessert", "Soup")
    return RankedLabels(SYSTEM, labels, probabilities, 0.8, relevance, 0.5, (("Naan", dish), ("Pita", 0.0)))


@pytest.mark.parametrize(
    ("answer", "relevant", "doubtful", "sure", "candidates"),
    [
        (answer_of((0.9, 0.05, 0.05)), True, False, True, []),
        (answer_of((0.5, 0.4, 0.1)), True, False, False, ["Bread", "Dessert"]),
        (answer_of((0.5, 0.3, 0.2)), True, False, False, []),
        (answer_of((0.9, 0.05, 0.05), relevance=0.6), True, True, False, ["Bread", "Dessert"]),
        (answer_of((0.9, 0.05, 0.05), relevance=0.4), False, False, False, []),
        (answer_of((0.9, 0.05, 0.05), relevance=None), True, False, True, []),
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
    answer: RankedLabels, relevant: bool, doubtful: bool, sure: bool, candidates: list[str]
) -> None:
    assert (answer.relevant, answer.doubtful, answer.sure) == (relevant, doubtful, sure)
    assert [label for label, _ in answer.candidates] == candidates


@pytest.mark.parametrize(
    ("answer", "state", "text", "kind", "probability"),
    [
        (answer_of((0.9, 0.05, 0.05)), "sure", "Bread", "", 0.9),
        (answer_of((0.9, 0.05, 0.05), dish=0.7), "sure", "Naan", "Bread", 0.9),
        (answer_of((0.5, 0.4, 0.1)), "not_sure", "Bread or Dessert", "", 0.5),
        (answer_of((0.5, 0.3, 0.2), dish=0.7), "not_sure", "Naan", "Bread", 0.5),
        (answer_of((0.9, 0.05, 0.05), 0.6, 0.7), "doubtful", "Not sure this is food", "", None),
        (answer_of((0.9, 0.05, 0.05), 0.4), "irrelevant", "This does not look like food", "", None),
    ],
)
def test_the_verdict_has_one_figure_that_no_class_exceeds(
    answer: RankedLabels, state: str, text: str, kind: str, probability: float | None
) -> None:
    verdict = answer.verdict
    assert (verdict.state, verdict.text, verdict.kind, verdict.probability) == (
        state,
        text,
        kind,
        probability,
    )


def test_a_figure_at_its_limit_reaches_it() -> None:
    assert answer_of((0.8, 0.1, 0.1)).sure
    assert not answer_of((0.7999, 0.1, 0.1)).sure
    assert answer_of((0.8, 0.1, 0.1), relevance=0.5).relevant
    assert not answer_of((0.8, 0.1, 0.1), relevance=0.875).doubtful, "three quarters from 0.5 to 1"
    assert answer_of((0.8, 0.1, 0.1), relevance=0.874).doubtful
    assert answer_of((0.8, 0.1, 0.1), dish=SYSTEM.likely).finer_name == "Naan"
    assert not replace(answer_of((0.99, 0.01, 0.0)), threshold=0.0).sure, "no threshold was measured"


def test_several_labels_that_apply_are_sorted_by_probability() -> None:
    several = replace(answer_of((0.81, 0.9, 0.79)), system=replace(SYSTEM, multi_label=True))
    assert several.applying == [("Dessert", 0.9), ("Bread", 0.81)]
    assert several.verdict.text == "Dessert, Bread"


def test_probabilities_and_relevance_of_logits_are_those_of_the_formulas() -> None:
    logits = np.array([[2.0, 0.0, -1.0], [-60.0, -61.0, -62.0], [90.0, 3.0, 1.0]], np.float32)
    exponents = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(softmax(logits), exponents / exponents.sum(axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(softmax(logits, 2.0), softmax(logits / 2), rtol=1e-6)
    total = exponents.sum(axis=1)
    np.testing.assert_allclose(relevance(logits), total / (1 + total), rtol=1e-5)
