"""Verdicts: when an answer is sure, names a dish or shows something else, and how thresholds are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gourmet.contracts import GeneratedText, ModelInfo, ScoredSentence
from gourmet.evaluation.text_certainty import NEVER, PRECISION, Judged, certainty, chosen
from gourmet.pictures.certainty import Named, RankedLabels, relevance, softmax
from gourmet.systems.food11.contract import ALL_DISHES, DISH_PROBABILITIES, DISHES, SYSTEM


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


# Verdicts on pictures
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
    ids=["sure", "two share it", "not sure", "perhaps something else", "something else", "no subject"],
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
    shown = (verdict.state, verdict.text, verdict.kind, verdict.probability)
    assert shown == (state, text, kind, probability)


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
    assert several.sure
    none = replace(several, probabilities=(0.4, 0.1, 0.2))
    assert (none.applying, none.verdict.text, none.sure) == ([], "Bread", False)
    assert several.verdict.text == "Dessert, Bread"


def test_probabilities_and_relevance_of_logits_are_those_of_the_formulas() -> None:
    logits = np.array([[2.0, 0.0, -1.0], [-60.0, -61.0, -62.0], [90.0, 3.0, 1.0]], np.float32)
    exponents = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(softmax(logits), exponents / exponents.sum(axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(softmax(logits, 2.0), softmax(logits / 2), rtol=1e-6)
    total = exponents.sum(axis=1)
    np.testing.assert_allclose(relevance(logits), total / (1 + total), rtol=1e-5)


# Dishes
SAMOSA: tuple[Named, ...] = (("Samosa", 0.61), ("Pakora", 0.2), ("Empanada", 0.05))
SPLIT: tuple[Named, ...] = (("Goulash", 0.3), ("Chili con carne", 0.21), ("Ragout", 0.1))


@pytest.mark.parametrize(
    ("finer", "relevance", "name", "candidates"),
    [
        (SAMOSA, 1.0, "Samosa", []),
        ((("Samosa", 0.59), ("Pakora", 0.0)), 1.0, "", ["Samosa", "Pakora"]),
        (SPLIT, 1.0, "", ["Goulash", "Chili con carne"]),
        ((("Goulash", 0.3), ("Ragout", 0.19)), 1.0, "", []),
        (SAMOSA, 0.4, "", []),  # declined as no food
        (SAMOSA, 0.8, "", ["Samosa", "Pakora"]),  # perhaps no food
        ((), 1.0, "", []),
    ],
)
def test_a_dish_is_named_if_it_is_likely_and_two_if_one_of_them_is(
    finer: tuple[Named, ...], relevance: float, name: str, candidates: list[str]
) -> None:
    probabilities = (0.0,) * 4 + (1.0,) + (0.0,) * 6
    answer = RankedLabels(SYSTEM, SYSTEM.labels, probabilities, 0.85, relevance, 0.5, finer)
    assert (answer.finer_name, answer.finer_candidates) == (name, candidates)


def test_all_forms_of_the_model_name_the_same_dishes() -> None:
    names = [dish.name for dish in SYSTEM.dishes]
    rows = np.zeros((2, len(names)), np.float32)
    rows[0, names.index("Samosa")], rows[0, names.index("Pakora")] = 0.7, 0.2
    (named, nothing) = SYSTEM.finer({ALL_DISHES: rows}, 2)
    assert named == [("Samosa", pytest.approx(0.7)), ("Pakora", pytest.approx(0.2))]
    assert nothing == []
    from_photos = {
        DISHES: np.array([[b"Samosa", b"Pakora", b""]], np.object_),
        DISH_PROBABILITIES: np.array([[0.7, 0.2, 0.0]], np.float32),
    }
    assert SYSTEM.finer(from_photos) == [named]
    assert SYSTEM.finer({"PROBABILITIES": np.ones((1, 11))}) == [[]]


def test_a_dish_without_a_name_is_never_named() -> None:
    unnamed = [index for index, dish in enumerate(SYSTEM.dishes) if not dish.name]
    assert unnamed
    rows = np.full((1, len(SYSTEM.dishes)), 1e-6, np.float32)
    rows[0, unnamed] = 0.4
    assert all(name for name, _ in SYSTEM.finer({ALL_DISHES: rows})[0])


def test_every_dish_has_a_class_of_the_contract_or_none_and_names_differ() -> None:
    named = [dish.name for dish in SYSTEM.dishes if dish.name]
    assert len(set(named)) == len(named) == 446
    assert {dish.label for dish in SYSTEM.dishes} == {*SYSTEM.labels, ""}
