"""What is true of any system that generates text: its gate, and what a check makes of its answers."""

from __future__ import annotations

from gourmet.tasks.generation.check import TextAnswer, TextReport
from gourmet.tasks.generation.gate import same_texts


def reversed_words(text: str) -> str:
    return " ".join(text.split()[::-1])


def test_an_export_that_answers_alike_passes() -> None:
    (found,) = same_texts(reversed_words, reversed_words, ["a b", "c"])
    assert found.passed


def test_an_export_that_answers_otherwise_or_not_at_all_does_not() -> None:
    (other,) = same_texts(reversed_words, str.upper, ["a b", "c"])
    assert not other.passed
    (broken,) = same_texts(reversed_words, lambda text: str(1 / 0), ["a b"])
    assert (broken.passed, broken.measured) == (False, "division by zero")


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
