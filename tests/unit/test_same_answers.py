"""The gate's comparison of an export with its network, at its exact limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gourmet.evaluation.same_answers import close_answers, same_answers, verify

Answers = Callable[[np.ndarray], np.ndarray]
LABELS = 4


def photos(count: int) -> np.ndarray:
    """Photos whose first pixel is their number."""
    rows = np.zeros((count, 2, 2, 3), np.uint8)
    rows[:, 0, 0, 0] = np.arange(count)
    return rows


def answering(best: np.ndarray, more: float = 0.0, wrong_alone: bool = False) -> Answers:
    """A model with 1 for a photo's label, and `more` for all labels of the third photo."""

    def answer(rows: np.ndarray) -> np.ndarray:
        numbers = rows[:, 0, 0, 0]
        scores = np.eye(LABELS)[best[numbers]]
        scores[numbers == 2] += more
        return scores[:, ::-1] if wrong_alone and len(rows) == 1 else scores

    return answer


TRUTH = np.arange(200) % LABELS


@pytest.mark.parametrize(("difference", "passes"), [(0.9e-3, True), (1.1e-3, False), (0.05, False)])
def test_scores_of_an_exact_export_differ_by_less_than_a_thousandth(difference: float, passes: bool) -> None:
    checks = same_answers(answering(TRUTH), answering(TRUTH, difference), photos(16))
    assert [check.what.rpartition(" ")[2] for check in checks[:-1]] == ["1", "2", "16"]
    assert all(check.passed for check in checks) is passes


def test_one_other_label_at_any_batch_size_fails_an_exact_export() -> None:
    other = TRUTH.copy()
    other[5] = (other[5] + 1) % LABELS
    *_, agreement = same_answers(answering(TRUTH), answering(other), photos(16), allowed=0.4)
    assert (agreement.measured, agreement.passed) == ("18 of 19", False)
    checks = same_answers(answering(TRUTH), answering(TRUTH, wrong_alone=True), photos(16))
    assert [check.passed for check in checks] == [False, True, True, False]


@pytest.mark.parametrize(("wrong", "passes"), [(3, True), (4, False)])
def test_a_quantized_export_may_answer_three_of_a_hundred_photos_otherwise(wrong: int, passes: bool) -> None:
    other = TRUTH.copy()
    other[:wrong] = (other[:wrong] + 1) % LABELS
    truth = TRUTH[:100].copy()
    truth[0:wrong:2] = other[0:wrong:2]  # some are right now
    checks = close_answers(answering(TRUTH), answering(other), photos(100), truth)
    assert next(check for check in checks if "agreement, 100 photos" in check.what).passed is passes


@pytest.mark.parametrize(("wrong", "made_up_agree"), [(30, True), (31, False)])
def test_of_made_up_pictures_fifteen_in_a_hundred_may_differ(wrong: int, made_up_agree: bool) -> None:
    other = TRUTH.copy()
    other[200 - wrong :] = (other[200 - wrong :] + 1) % LABELS
    checks = close_answers(answering(TRUTH), answering(other), photos(200), TRUTH[:0])
    (made_up,) = (check for check in checks if "made up" in check.what)
    assert made_up.passed is made_up_agree


@pytest.mark.parametrize(("sign", "wrong"), [(1, 2), (-1, 2)])
@pytest.mark.parametrize("loses", [False, True])
def test_a_quantized_export_loses_and_gains_a_point_at_most(sign: int, wrong: int, loses: bool) -> None:
    """Of a class of 50; its own chance is 1.96 standard errors."""
    other, truth = TRUTH.copy(), TRUTH.copy()
    mine = np.flatnonzero(TRUTH == 0)[: 8 if loses else wrong]
    (other if sign > 0 else truth)[mine] = 1
    if sign < 0:
        other[mine] = 1
    checks = close_answers(answering(TRUTH), answering(other), photos(200), truth)
    lost = next(check for check in checks if check.what == "balanced accuracy lost")
    assert lost.passed is not loses, lost


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (lambda scores: scores * np.nan, "not finite"),
        (lambda scores: scores + np.inf, "not finite"),
        (lambda scores: scores[:-1], "have an answer of the shape"),
        (lambda scores: scores[0], "have an answer of the shape"),
    ],
)
def test_an_export_that_answers_with_anything_else_does_not_pass(
    rows: Callable[[np.ndarray], np.ndarray], says: str
) -> None:
    right = answering(TRUTH)
    verified = verify(
        lambda path: lambda some: rows(right(some)), lambda model: same_answers(right, model, photos(16))
    )
    (check,) = verified(None)  # type: ignore[arg-type]
    assert (check.passed, says in check.measured) == (False, True), check
