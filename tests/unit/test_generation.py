"""What a check makes of the answers of a system that generates text."""

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
    assert not report.stopped
