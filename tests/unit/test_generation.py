"""Reports of a check of a system that generates text."""

from __future__ import annotations

from gourmet.contracts import ModelInfo
from gourmet.tasks.checking import FailedRequest, Replies
from gourmet.tasks.generation.check import TextAnswer, TextReport
from gourmet.tasks.system_parts import Reference


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
