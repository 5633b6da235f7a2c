"""What a check makes of the answers of a system that generates text."""

from __future__ import annotations

from gourmet.tasks.generation.check import TextAnswer, TextReport


def test_pieces_that_are_not_the_whole_answer_fail_the_check() -> None:
    asked = [
        TextAnswer("a b", ("b", " a"), "b a", 10.0, 4.0),
        TextAnswer("c d", ("d", "c"), "d c", 10.0, 4.0),
        TextAnswer("e", (), failure="no answer within 60 s"),
    ]
    report = TextReport("m", "1", True, "whole", 3, asked)
    assert report.faults() == [
        "1 of 3 texts have no answer: 'e': no answer within 60 s",
        "1 of 3 answers are not those of whole: 'c d': 'dc' in pieces, 'd c' whole",
    ]
    assert report.as_dict()["first_piece_ms"]["p50"] == 4.0
    assert not report.stopped
