"""Reports of a check, compared with numbers computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gourmet.contracts import ModelInfo
from gourmet.evaluation.checking import CheckOptions, FailedRequest, Replies
from gourmet.evaluation.picture_check import (
    AskedAgain,
    BatchAnswer,
    CheckedPictures,
    PictureReport,
    agreement,
    joined,
)
from gourmet.evaluation.picture_evaluation import Answered
from gourmet.evaluation.system_parts import Reference
from gourmet.evaluation.text_check import TextAnswer, TextReport

LABELS = ("a", "b", "c<d")
MODEL = ModelInfo("letters", (), (), {"threshold": "0.6"}, version="3")
CONTRACT: Any = SimpleNamespace(labels_of=lambda info: LABELS, subject="food")
PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]], np.float32)
CLASSES = np.array([0, 1, 1, 2])


PICTURES = CheckedPictures(
    Path("data"), ["p0", "p1", "p2", "p3"], CLASSES, lambda rows: iter([b"picture"] * len(rows))
)


def batch(*rows: int, version: str = "3", relevance: np.ndarray | None = None) -> BatchAnswer:
    return BatchAnswer(rows, PROBABILITIES[[*rows]], relevance, version, 10.0)


def answers(*batches: BatchAnswer) -> Answered:
    return joined(PICTURES, batches or [batch(0, 1), batch(2, 3)], 3)[1]


def report(*batches: BatchAnswer, **more: object) -> PictureReport:
    of_all = [*batches] or [batch(0, 1), batch(2, 3)]
    return PictureReport(
        model=MODEL,
        contract=CONTRACT,
        pictures=PICTURES,
        options=CheckOptions("letters", None, Path("models")),
        replies=Replies(of_all, sent=4, wall_s=0.5, **more),  # type: ignore[arg-type]
        answers=answers(*of_all),
        again=AskedAgain(4, 1e-7, ()),
        eager="no weights",
    )


def test_quality_of_the_answers_by_hand() -> None:
    quality = report().quality
    assert quality is not None
    assert quality.accuracy.top1 == 3 / 4
    assert quality.accuracy.balanced == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert quality.at_threshold.coverage == 2 / 4
    assert quality.at_threshold.accuracy == 1.0
    assert quality.error == pytest.approx((0.3 + 2 * 0.0 + 0.2) / 4)


def test_a_picture_without_an_answer_is_counted_and_named_and_left_out_of_the_accuracy() -> None:
    made = report(batch(0), batch(2, 3), failures=[FailedRequest(["p1"], "no answer within 60 s")])
    assert made.answered == 3
    assert made.quality is not None
    assert made.quality.accuracy.top1 == 1.0
    (problem,) = made.problems()
    assert "1 of 3 requests failed, which leaves 1 of 4 pictures" in problem
    assert "p1: no answer within 60 s" in problem
    assert made.as_dict()["complete"] is False
    assert "3 of 4 pictures answered" in made.summary()


def test_rows_mixed_up_and_two_versions_are_problems() -> None:
    made = report(batch(0, 1), batch(2, 3, version="4"))
    made = replace(made, again=AskedAgain(4, 0.4, ("p1 (its answer went to p2)",)))
    mixed, versions = made.problems()
    assert "p1 (its answer went to p2)" in mixed
    assert "the versions 3, 4 answered" in versions


def test_nothing_answered_is_a_report_without_accuracy() -> None:
    failed = Replies[BatchAnswer](failures=[FailedRequest(["p0", "p1"], "broken")], sent=2)
    made = replace(report(), replies=failed, answers=joined(PICTURES, [], 3)[1], again=None)
    assert made.quality is None
    assert "0 of 4 pictures answered" in made.summary()
    assert "p0 … p1: broken" in made.problems()[0]
    json.dumps(made.as_dict(), allow_nan=False)


def test_the_numbers_have_one_name_in_check_and_evaluate() -> None:
    numbers = report().as_dict()["quality"]
    assert numbers["answered_surely"] == numbers["answered"] == 2 / 4
    assert numbers["calibration_error"] == numbers["calibration_error_after"]
    assert numbers["threshold"] == 0.6


def test_agreement_counts_other_answers_and_lists_them_first() -> None:
    theirs = PROBABILITIES.astype(np.float64)
    theirs[1] = [0.45, 0.46, 0.09]
    theirs[2] = [0.1, 0.6, 0.3]
    compared = agreement(answers(), theirs, LABELS, "w", labelled=True)
    assert compared.different == 1
    assert compared.largest_difference == pytest.approx(0.2)
    assert [entry["name"] for entry in compared.worst[:2]] == ["p1", "p2"]
    assert (compared.worst[0]["served"], compared.worst[0]["other"]) == ("a", "b")
    assert compared.top1 == 4 / 4
    without_labels = agreement(answers(), PROBABILITIES, LABELS, "w", labelled=False)
    assert (without_labels.different, without_labels.top1) == (0, None)


def test_the_page_holds_everything_itself_and_the_summary_every_class() -> None:
    made = replace(report(), eager=agreement(answers(), PROBABILITIES, LABELS, "w", labelled=True))
    html = made.page()
    assert html.count("<svg") == 3
    assert "c&lt;d" in html
    assert "c<d" not in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "data:image;base64," in html, "a mistake is shown"
    lines = made.summary().splitlines()
    assert [line.split()[0] for line in lines if line.endswith(".000") or line.endswith(".500")] == [*LABELS]


def test_pictures_of_another_subject_are_counted_and_never_sure() -> None:
    food = replace(MODEL, parameters={"threshold": "0.6", "subject_threshold": "0.5"})
    relevance = np.array([0.1, 0.9, 0.9, 0.9], np.float32)
    result = replace(report(batch(0, 1, 2, 3, relevance=relevance)), model=food)
    assert result.declined is not None
    assert (result.declined.irrelevant, result.declined.unsure) == (1 / 4, 2 / 4)
    assert result.quality is not None
    assert result.quality.at_threshold.coverage == 1 / 4
    assert result.quality.accuracy.top1 == 3 / 4, "which does not ask how sure an answer is"
    assert "25.0% said to be something else, 50.0% not sure" in result.summary()
    assert report().declined is None, "from a model that does not tell"


# Texts


def test_pieces_that_are_not_the_whole_answer_fail_the_check() -> None:
    replies = Replies(
        [
            TextAnswer(Reference("", text, ""), joined, 2, whole, 10.0, 4.0)
            for text, joined, whole in (("a b", "b a", "b a"), ("c d", "dc", "d c"))
        ],
        [FailedRequest(("'e'",), "no answer within 60 s")],
    )
    report = TextReport(ModelInfo("m", (), (), version="1", decoupled=True), "whole", 3, replies)
    assert report.faults() == [
        "1 of 3 texts have no answer: 'e': no answer within 60 s",
        "1 of 3 answers are not those of whole: 'c d': 'dc' in pieces, 'd c' whole",
    ]
    assert report.as_dict()["first_piece_ms"]["p50"] == 4.0
    assert report.as_dict()["sure"] is None  # its model does not say which answers are
    assert not report.stopped


def test_the_report_counts_sure_answers_and_the_near_ones_among_them() -> None:
    answers = [TextAnswer(Reference("", "a", "b"), "b", sure=number > 3) for number in range(10)]
    report = TextReport(ModelInfo("m", (), (), version="1"), "", 10, Replies(answers, []), near_of_sure=0.75)
    assert (report.as_dict()["sure"], report.as_dict()["near_of_sure"]) == (0.6, 0.75)
    assert "60.0 % of the answers; of them 75.0 % have a chrF of at least 50" in report.summary()
    assert report.page().count("rough guess") == 4
