"""What every report is made of: charts that are whole SVGs, one page, tables, and parts of pages of docs/."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gourmet.reports import page
from gourmet.reports.chart import Bar, Drawing, Series, bars, lines, matrix
from gourmet.reports.report import Chart, Photo, Report, Section, Table
from gourmet.reports.table import columns, number_columns

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
        (
            lines([Series("a", [(0, 1), (1, 2)]), Series("b", [(0, 0), (1, 1)])], "t", ("x", "y")),
            "polyline",
            2,
        ),
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
