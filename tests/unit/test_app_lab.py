"""The lab's page without a Triton: what was counted, reports good and hostile, and the addresses."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app
from app.errors import TritonUnavailable
from app.inference import Deadline, ModelStatistics
from app.lab import figures, reports
from app.lab.figures import Figures
from app.lab.reports import Report, Reports
from app.remembered import Remembered
from app.settings import Rate, Settings, SettingsError

COUNTED = ModelStatistics(
    "m", "2", 30, 1, 60, 20, 6_000_000, 1_000_000, 58_000_000, 1_000_000, {4: 10, 2: 10}
)
NEVER_ASKED = ModelStatistics("idle", "1", 0, 0, 0, 0, 0, 0, 0, 0, {})
BENCH: dict[str, Any] = {
    "title": "the food lab",
    "when": "2026-11-21T10:00:00+00:00",
    "machine": {"processor": "a chip", "cpus": "2 of 2", "memory": "8 GiB"},
    "points": [
        {
            "arm": "one instance",
            "demand": {"level": level, "arrivals": "closed"},
            "rows_per_s": {"value": value},
            "latency_ms": {"p95": 8.5},
        }
        for level, value in ((1, 40.0), (8, 120.4))
    ],
    "refused": [],
}


def client(reports: Path | None = None, **settings: Any) -> FlaskClient:
    """The app with nobody at Triton's address."""
    return create_app(
        Settings("127.0.0.1:1", lab_reports=reports, connect_timeout_s=0.5, **settings)
    ).test_client()


def write(folder: Path, bench: Any = None, title: str = "a page") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(f"<!doctype html><title>{title}</title><p>figures")
    if bench is not None:
        (folder / "bench.json").write_text(bench if isinstance(bench, str) else json.dumps(bench))
    return folder


def only(folder: Path) -> Report:
    (found,) = Reports(folder).latest()
    return found


def changed(*place: str | int, to: Any) -> dict[str, Any]:
    bench = json.loads(json.dumps(BENCH))
    at = bench
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = to
    return bench


# What Triton counted


def test_many_who_want_to_know_ask_once_and_nobody_waits_for_who_asks() -> None:
    asked, go_on = [], threading.Event()

    def ask() -> int:
        asked.append(1)
        assert len(asked) == 1 or go_on.wait(30)
        return len(asked)

    remembered = Remembered(ask, age_s=0.0)
    assert remembered.get() == 1
    slow = threading.Thread(target=remembered.get)
    slow.start()
    while len(asked) < 2:
        pass
    assert [remembered.get() for _ in range(20)] == [1] * 20
    go_on.set()
    slow.join(30)
    assert len(asked) == 2
    assert [Remembered(ask, age_s=60).get() for _ in range(2)] == [3, 4]
    fresh = Remembered(ask, age_s=60)
    assert [fresh.get() for _ in range(5)] == [5] * 5


def test_a_look_has_all_models_by_name_and_is_kept_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_AGE_S", 60)
    answers: list[Any] = [[COUNTED, NEVER_ASKED]]

    def ask(deadline: Deadline) -> list[ModelStatistics]:
        assert deadline.seconds <= 2
        return answers.pop()

    seen = Figures(ask)
    told = seen.look().as_dict()
    assert seen.look().as_dict() == told
    assert [model["name"] for model in told["models"]] == ["idle", "m"]
    assert told["models"][1] == {
        **{"name": "m", "version": "2", "requests": 30, "failures": 1, "rows": 60, "executions": 20},
        **{"queue_ms": 6.0, "compute_ms": 60.0},
        "batches": [{"rows": 2, "executions": 10}, {"rows": 4, "executions": 10}],
    }


def test_that_triton_is_away_is_kept_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_AGE_S", 60)
    asked = []

    def ask(_: Deadline) -> list[ModelStatistics]:
        asked.append(1)
        raise TritonUnavailable("away")

    seen = Figures(ask)
    for _ in range(3):
        with pytest.raises(TritonUnavailable):
            seen.look()
    assert len(asked) == 1


def test_the_table_has_means_and_says_where_there_are_none() -> None:
    assert figures.totals(COUNTED) == ["30", "1", "60", "20", "3.00", "0.20", "2.00"]
    assert figures.totals(NEVER_ASKED) == ["0", "0", "0", "0", "–", "–", "–"]
    assert [figures.figure(value) for value in (0, 1.234, 12.34, 123.4, 1257.4)] == [
        *("0", "1.23", "12.3", "123", "1257")
    ]


# Reports


def test_reports_are_listed_the_latest_first_with_what_a_benchmark_says(tmp_path: Path) -> None:
    write(tmp_path / "bench" / "older", {**BENCH, "when": "2026-11-20T10:00:00+00:00", "title": "older"})
    write(tmp_path / "bench" / "food", BENCH)
    (tmp_path / "m.check.html").write_text("<title>m &amp; co,\n checked</title>")
    os.utime(tmp_path / "m.check.html", (0, 0))
    latest, older, checked = Reports(tmp_path).latest()
    assert [report.title for report in (latest, older, checked)] == [
        "the food lab",
        "older",
        "m & co, checked",
    ]
    assert checked.told is None
    assert latest.told
    assert latest.told.best
    assert (latest.told.machine, latest.told.points) == ("a chip, 2 of 2", 2)
    assert (latest.told.best.name, latest.told.best.rows_per_s) == ("one instance c=8", 120.4)


def test_a_report_that_changed_is_read_again_and_one_that_went_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_AGE_S", 0)
    write(tmp_path / "a", title="first")
    shown = Reports(tmp_path)
    (report,) = shown.latest()
    assert report.title == "first"
    write(tmp_path / "a", BENCH, title="now a benchmark")
    assert [each.title for each in shown.latest()] == ["the food lab"]
    (tmp_path / "a" / "index.html").unlink()
    assert shown.page(report.id) is None
    assert shown.latest() == []
    assert Reports(tmp_path / "nowhere").latest() == []


@pytest.mark.parametrize(
    "bench",
    [
        *("", "{", "[]", "null", '"text"', "[" * 100_000, '{"points": 1e999}', "\x00"),
        {},
        changed("when", to="yesterday"),
        changed("when", to=7),
        changed("machine", to=None),
        changed("points", to=5),
        changed("points", to=["x"]),
        changed("points", 0, "rows_per_s", to=None),
        changed("points", 0, "rows_per_s", "value", to="many"),
        changed("points", 0, "rows_per_s", "value", to=float("nan")),
        changed("points", 0, "latency_ms", "p95", to=10**400),
        changed("points", 0, "demand", "level", to="all"),
        changed("refused", to=3),
    ],
    ids=lambda bench: str(bench)[-40:],
)
def test_a_benchmark_that_is_none_leaves_its_page_in_the_list(tmp_path: Path, bench: Any) -> None:
    write(tmp_path / "odd", bench)
    report = only(tmp_path)
    assert (report.title, report.told) == ("a page", None)


def test_texts_that_are_long_or_markup_stay_short_and_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    write(tmp_path / "evil", {**BENCH, "title": evil * 50, "machine": {"processor": evil}})
    write(tmp_path / "untitled", title="")
    text = client(tmp_path).get("/lab").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert len(text) < 30_000
    assert "untitled/index.html" in text


def test_links_lead_out_of_no_folder(tmp_path: Path) -> None:
    secret = write(tmp_path / "elsewhere", BENCH, title="secret")
    folder = tmp_path / "reports"
    write(folder / "own", title="own")
    (folder / "own" / "bench.json").symlink_to(secret / "bench.json")
    (folder / "link").symlink_to(secret)
    (folder / "link.html").symlink_to(secret / "index.html")
    os.mkfifo(folder / "fifo.html")
    (folder / "folder.html").mkdir()
    assert (only(folder).title, only(folder).told) == ("own", None)


# The addresses


@pytest.mark.parametrize(
    "place", ["nothing", "..%2f..%2fetc%2fpasswd", "../../secret.html", "bench", "0" * 16, "%00"]
)
def test_a_report_is_reached_by_its_id_and_by_nothing_else(tmp_path: Path, place: str) -> None:
    write(tmp_path / "reports" / "bench", BENCH)
    (tmp_path / "secret.html").write_text("secret")
    browser = client(tmp_path / "reports")
    report = only(tmp_path / "reports")
    found = browser.get(f"/lab/reports/{report.id}")
    assert (found.status_code, found.mimetype) == (200, "text/html")
    assert "<p>figures" in found.text
    policy = found.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    refused = browser.get(f"/lab/reports/{place}")
    assert refused.status_code == 404
    assert "secret" not in refused.text.replace("secret.html", "")


@pytest.mark.parametrize("guarded", [False, True], ids=["open", "keys and a rate"])
def test_while_triton_is_away_the_page_says_so_and_shows_the_reports(tmp_path: Path, guarded: bool) -> None:
    write(tmp_path / "bench", BENCH)
    settings = {"api_keys": ("k" * 16,), "rate_limit": Rate(1, 3600)} if guarded else {}
    browser = client(tmp_path, **settings)
    for _ in range(3):  # neither an API that takes a key nor photos that are counted
        page = browser.get("/lab")
        assert page.status_code == 200
        now = browser.get("/lab/figures", headers={"Accept": "application/json"})
        assert (now.status_code, now.get_json()["error"]["code"]) == (503, "triton_unavailable")
        assert "RateLimit" not in now.headers
    assert "There are no figures at the moment" in page.text
    assert "no Triton answers at 127.0.0.1:1" in page.text
    assert "120 rows/s at one instance c=8, p95 8.50 ms" in page.text
    assert 'datetime="2026-11-21T10:00:00+00:00"' in page.text


def test_without_reports_it_says_how_to_make_one(tmp_path: Path) -> None:
    for folder, says in ((None, "set LAB_REPORTS"), (tmp_path / "empty", "in the folder empty")):
        text = client(folder).get("/lab").text
        assert says in text
        assert "gourmet bench run food_classifier" in text
        assert str(tmp_path) not in text


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    report = only(write(tmp_path / "bench", BENCH))
    browser = client(tmp_path, lab_page="off")
    for address in ("/lab", "/lab/figures", f"/lab/reports/{report.id}"):
        assert browser.get(address).status_code == 404
    assert 'href="/lab"' not in browser.get("/compare").text
    assert 'href="/lab"' in client().get("/compare").text
    with pytest.raises(SettingsError, match="LAB_PAGE is 'no': give on or off"):
        Settings.from_env({"LAB_PAGE": "no"})
    assert Settings.from_env({"LAB_REPORTS": "runs"}).lab_reports == Path("runs")
