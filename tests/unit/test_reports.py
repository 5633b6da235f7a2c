"""Reports: charts, pages and tables, and those of a check against numbers computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from gourmet.contracts import ModelInfo
from gourmet.evaluation.checking import CheckOptions, FailedRequest, Replies
from gourmet.evaluation.picture_check import (
    BatchAnswer,
    CheckedPictures,
    differences,
    join_answers,
    picture_report,
)
from gourmet.evaluation.picture_scores import LabelledScores
from gourmet.evaluation.system_parts import Reference
from gourmet.evaluation.text_check import TextAnswer, text_report
from gourmet.reports import page
from gourmet.reports.chart import Bar, Drawing, Series, bars, lines, matrix
from gourmet.reports.report import Chart, Photo, Report, Section, Table
from gourmet.reports.table import columns, number_columns
from gourmet.systems.food11.contract import SYSTEM as FOOD

SVG = "{http://www.w3.org/2000/svg}"
BARS = [Bar("a < b", 2.0, 1.5, 2.5), Bar("c", 3.0)]


def shapes(drawing: Drawing, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(drawing).iter(f"{SVG}{tag}"))


@pytest.mark.parametrize(
    ("drawing", "tag", "count"),
    [
        (bars(BARS, "t", "rows"), "rect", 2),
        (bars(BARS, "t", "rows", colours={"one": "#111", "two": "#222"}), "rect", 4),
        (lines([Series("a", [(0, 1), (1, 2)], radii=(3, 4))], "t", ("epoch", "loss")), "circle", 2),
        (lines([Series(name, [(0, 1), (1, 2)]) for name in "ab"], "t", ("x", "y")), "polyline", 2),
        (matrix({"a": [1.0, 0.0], "b": [0.5, 0.5]}, ["a", "b"], "t", ("true", "answered")), "rect", 4),
    ],
    ids=["bars", "legend", "dots", "lines", "matrix"],
)
def test_a_chart_is_a_complete_svg_with_a_description(drawing: Drawing, tag: str, count: int) -> None:
    assert len(shapes(drawing, tag)) == count
    assert shapes(drawing, "title")[0].text == "t"
    assert drawing.height > 60


def test_a_page_names_its_command_and_escapes_its_texts() -> None:
    made = {"when": "2026-11-22T10:04:00+00:00", "command": "gourmet x <y>"}
    html = page.render("reports/report.html", title="m & n", **made)
    assert "<title>m &amp; n · 2026-11-22 10:04</title>" in html
    assert "<h1>m &amp; n</h1>" in html
    assert "<code>gourmet x &lt;y&gt;</code>" in html


def test_words_are_aligned_left_and_numbers_right_on_pages_and_terminals() -> None:
    rows = [("2 dogs", "0.5", "7 cats", "1.2e-03"), ("12", "–", "3", "10")]
    assert number_columns(rows) == [False, True, False, True]
    table = Table(("text", "answer", "words"), [("a b", "c d", "12")])
    answers = Report("t", "", {}, [Section(tables=[table])]).page()
    assert "<td>a b<td>c d<td class='number'>12" in answers
    assert columns([("name", "count"), ("a", "7")]) == "name  count\na         7"


def test_one_report_is_a_text_a_page_and_json() -> None:
    photo = Photo(b"a", "Soup, taken for Bread", "p<1>.jpg")
    section = Section(
        "test: 2 pictures",
        facts=[("top-1", "0.5")],
        tables=[Table(("class", "recall"), [("Soup", "0.5"), ("x" * 100, "1")], 1), Table(("empty",), [])],
        charts=lambda: [Chart("Bars", bars(BARS, "t", "rows"))],
        photos_title="Mistakes",
        photos=lambda: [photo],
    )
    report = Report("a title", "a headline", {"top1": 0.5}, [section], ["a note"], ["too bad"], "1 of 2")
    text, html = report.text(), report.page()
    assert text.splitlines()[:3] == [
        "a headline",
        "STOPPED     the rest is about the answers until then",
        "note        a note",
    ]
    assert text.endswith("test: 2 pictures\ntop-1       0.5\n\nclass  recall\nSoup      0.5"), "of one row"
    assert report.json() == '{\n  "top1": 0.5\n}'
    for part in ("a headline", "<li>Stopped after 1 of 2.", "<li>a note", "<li>too bad", "<td>0.5", "<svg"):
        assert part in html
    assert "x" * 100 in html
    assert "p&lt;1&gt;.jpg" in html
    assert "empty" not in text + html


def test_control_characters_of_names_do_not_reach_a_terminal() -> None:
    table = Table(("name",), [("a\x1b[31m\n" + "b" * 80,)])
    line = Report("", "", {}, [Section(tables=[table])]).text().splitlines()[-1]
    assert line == "a\\x1b[31m " + "b" * 52 + "…"


# Reports of a check
LABELS = ("a", "b", "c<d")
MODEL = ModelInfo("letters", (), (), {"threshold": "0.6"}, version="3")
CONTRACT: Any = SimpleNamespace(labels_of=lambda info: LABELS, subject="food")
PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]], np.float32)
CLASSES = np.array([0, 1, 1, 2])


OPTIONS = CheckOptions("letters", None)
NAMES = ["p0", "p1", "p2", "p3"]
PICTURES = CheckedPictures(Path("data"), NAMES, CLASSES, lambda rows: iter([b"picture"] * len(rows)))


def batch(*rows: int, version: str = "3", relevance: np.ndarray | None = None) -> BatchAnswer:
    return BatchAnswer(rows, PROBABILITIES[[*rows]], relevance, version, 10.0)


def answers(*batches: BatchAnswer, scores: np.ndarray = PROBABILITIES) -> LabelledScores:
    return replace(join_answers(PICTURES, batches or [batch(0, 1), batch(2, 3)], 3)[1], logits=np.log(scores))


def report(
    *batches: BatchAnswer,
    failures: list[FailedRequest] | None = None,
    model: ModelInfo = MODEL,
    options: CheckOptions = OPTIONS,
    **compared: Any,
) -> Report:
    of_all = [*batches] if batches or failures else [batch(0, 1), batch(2, 3)]
    replies = Replies(of_all, failures or [], sent=4, wall_s=0.5)
    answered = join_answers(PICTURES, of_all, 3)[1]
    return picture_report(model, CONTRACT, PICTURES, options, replies, answered, **compared)


def test_quality_of_the_answers_by_hand() -> None:
    quality = report().measures["quality"]
    assert quality["top1"] == 3 / 4
    assert quality["balanced"] == pytest.approx((1 + 1 / 2 + 1) / 3, abs=1e-4)
    assert quality["answered"] == 2 / 4
    assert quality["right_of_answered"] == 1.0
    assert quality["calibration_error"] == pytest.approx((0.3 + 2 * 0.0 + 0.2) / 4, abs=1e-4)


def test_dishes_are_measured_where_a_folder_names_one() -> None:
    names = ["c/pad_thai/1.jpg", "c/hummus/2.jpg", "c/web/3.jpg", "c/samosa/4.jpg"]
    pictures = replace(PICTURES, names=names)
    finer = [[("Pad thai", 0.9)], [("Falafel", 0.7), ("Hummus", 0.2)], [("Samosa", 0.9)], [("Samosa", 0.5)]]
    replies = Replies([replace(batch(0, 1, 2, 3), finer=finer)], [], sent=4, wall_s=0.5)
    system: Any = SimpleNamespace(**vars(CONTRACT), likely=0.6, finer_name_of=FOOD.finer_name_of)
    answered = join_answers(pictures, replies.answers, 3)[1]
    made = picture_report(MODEL, system, pictures, OPTIONS, replies, answered)
    expected = {"pictures": 3, "top1": 2 / 3, "top3": 1.0, "likely": 2 / 3, "right_of_likely": 1 / 2}
    assert made.measures["dishes"] == pytest.approx(expected, abs=1e-4)
    assert "3 pictures whose folder names one" in made.text()


def test_a_picture_without_an_answer_is_counted_and_named_and_left_out_of_the_accuracy() -> None:
    made = report(batch(0), batch(2, 3), failures=[FailedRequest(["p1"], "no answer within 60 s")])
    assert made.measures["answered"] == 3
    assert made.measures["quality"]["top1"] == 1.0
    (failure,) = made.failures
    assert "1 of 3 requests failed, which leaves 1 of 4 pictures" in failure
    assert "p1: no answer within 60 s" in failure
    assert made.measures["complete"] is False
    assert "3 of 4 pictures answered" in made.text()


def test_rows_mixed_up_and_two_versions_are_problems() -> None:
    again = {"pictures": 4, "largest_difference": 0.4, "different": ["p1 (its answer went to p2)"]}
    made = report(batch(0, 1), batch(2, 3, version="4"), again={**again, "refused": []})
    mixed, versions = made.failures
    assert "p1 (its answer went to p2)" in mixed
    assert "the versions 3, 4 answered" in versions


def test_a_goal_that_is_missed_fails_a_check_that_is_complete() -> None:
    made = report(options=replace(OPTIONS, min_top1=0.8))
    assert made.failures == ["top-1 is 0.7500, below the 0.8 that --min-top1 asks for"]
    assert made.measures["complete"] is True
    assert made.failures[0] in made.page()


def test_nothing_answered_is_a_report_without_accuracy() -> None:
    made = report(failures=[FailedRequest(["p0", "p1"], "broken")])
    assert made.measures["quality"] is None
    assert "0 of 4 pictures answered" in made.text()
    assert "p0 … p1: broken" in made.failures[0]
    json.dumps(made.measures, allow_nan=False)
    assert "<svg" not in made.page()


def test_the_numbers_have_one_name_in_check_and_evaluate() -> None:
    numbers = report().measures["quality"]
    assert numbers["answered_surely"] == numbers["answered"] == 2 / 4
    assert numbers["calibration_error"] == numbers["calibration_error_after"]
    assert numbers["threshold"] == 0.6


def test_differences_counts_other_answers_and_lists_them_first() -> None:
    theirs = PROBABILITIES.astype(np.float64)
    theirs[1] = [0.45, 0.46, 0.09]
    theirs[2] = [0.1, 0.6, 0.3]
    compared = differences(answers(), answers(scores=theirs), LABELS, "w")
    assert compared["different"] == 1
    assert compared["largest_difference"] == pytest.approx(0.2)
    assert [row["name"] for row in compared["worst"][:2]] == ["p1", "p2"]
    assert (compared["worst"][0]["served"], compared["worst"][0]["other"]) == ("a", "b")
    assert compared["top1"] == 4 / 4
    made = report(against=compared)
    assert "1 of 4 answered otherwise than by w, whose top-1 is 1.0000" in made.text()
    assert "furthest from w" in made.text()
    assert "furthest from w" not in report(against=differences(answers(), answers(), LABELS, "w")).text()


def test_the_page_holds_everything_itself_and_the_text_every_class() -> None:
    html = report().page()
    assert html.count("<svg") == 3
    assert "c&lt;d" in html
    assert "c<d" not in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "data:image;base64," in html, "a mistake is shown"
    lines = report().text().splitlines()
    assert [line.split()[0] for line in lines if line.endswith(".000") or line.endswith(".500")] == [*LABELS]


def test_pictures_of_another_subject_are_counted_and_never_sure() -> None:
    food = replace(MODEL, parameters={"threshold": "0.6", "subject_threshold": "0.5"})
    relevance = np.array([0.1, 0.9, 0.9, 0.9], np.float32)
    made = report(batch(0, 1, 2, 3, relevance=relevance), model=food)
    assert made.measures["declined"] == {"photos": 4, "said to be something else": 1 / 4, "not sure": 2 / 4}
    assert made.measures["quality"]["answered"] == 1 / 4
    assert made.measures["quality"]["top1"] == 3 / 4, "which does not ask how sure an answer is"
    assert "25.0% said to be something else, 50.0% not sure" in made.text()
    assert report().measures["declined"] is None, "from a model that does not tell"


# Texts


def test_pieces_that_are_not_the_whole_answer_fail_the_check() -> None:
    replies = Replies(
        [
            TextAnswer(Reference("", text, ""), joined, 2, whole, 10.0, 4.0)
            for text, joined, whole in (("a b", "b a", "b a"), ("c d", "dc", "d c"))
        ],
        [FailedRequest(("'e'",), "no answer within 60 s")],
    )
    report = text_report(ModelInfo("m", (), (), version="1", decoupled=True), replies, 3, "whole")
    assert report.failures == report.measures["faults"]
    assert report.failures == [
        "1 of 3 texts have no answer: 'e': no answer within 60 s",
        "1 of 3 answers are not those of whole: 'c d': 'dc' in pieces, 'd c' whole",
    ]
    assert report.measures["first_piece_ms"]["p50"] == 4.0
    assert report.measures["sure"] is None  # its model does not say which answers are
    assert not report.stopped
    assert "<td>&#39;e&#39;<td>no answer within 60 s" in report.page()


def test_the_report_counts_sure_answers_and_the_near_ones_among_them() -> None:
    answers = [
        TextAnswer(Reference("", "a", "bread"), "bread" if number > 5 else "no", sure=number > 1)
        for number in range(10)
    ]
    report = text_report(ModelInfo("m", (), (), version="1"), Replies(answers, []), 10)
    assert (report.measures["sure"], report.measures["near_of_sure"]) == (0.8, 0.5)
    assert "80.0 % of the answers; of them 50.0 % have a chrF of at least 50" in report.text()
    assert report.text().count("rough guess") == 2
    assert report.page().count("rough guess") == 2
    assert (report.text().count("bread"), report.page().count("bread")) == (0, 4), "a terminal shows five"
