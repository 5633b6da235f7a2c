"""The lab's page without a Triton: what was counted, reports good and hostile, and the addresses."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.listener import Listen, listen

from app import create_app
from app.api.services import TtlCache
from app.asking import AppTriton
from app.core.errors import TritonUnavailable
from app.core.settings import Rate, Settings, SettingsError
from app.features import lab
from app.features.lab import Report, Reports
from gourmet.client.deadline import Deadline
from gourmet.client.statistics import ModelStatistics
from gourmet.reports.page import render

__all__ = ["listen"]  # the fixture

COUNTED = ModelStatistics(
    name="m",
    version="2",
    requests=30,
    failures=1,
    rows=60,
    executions=20,
    queue_ns=6_000_000,
    input_ns=1_000_000,
    infer_ns=58_000_000,
    output_ns=1_000_000,
    executions_by_batch={4: 10, 2: 10},
)
NEVER_ASKED = ModelStatistics("idle", "1")
SAYS = "120 rows/s at one instance c=8, p95 8.5 ms"
WHEN = "2026-11-21T10:00:00+00:00"


def client(reports: Path | None = None, **settings: Any) -> FlaskClient:
    """The app with nobody at Triton's address."""
    return create_app(
        Settings(**{"triton_url": "127.0.0.1:1"} | settings, lab_reports=reports, connect_timeout_s=0.5)
    ).test_client()


def write(folder: Path, says: str = "", title: str = "a page", when: str = WHEN) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    page = render("reports/report.html", title=title, says=says, when=when)
    (folder / "index.html").write_text(page)
    return folder


def only(folder: Path) -> Report:
    (found,) = Reports(folder).latest()
    return found


# What Triton counted


def test_many_who_want_to_know_ask_once_and_nobody_waits_for_who_asks() -> None:
    asked, go_on = [], threading.Event()

    def ask() -> int:
        asked.append(1)
        assert len(asked) == 1 or go_on.wait(30)
        return len(asked)

    remembered = TtlCache(ask, age_s=0.0)
    assert remembered.get() == 1
    slow = threading.Thread(target=remembered.get)
    slow.start()
    while len(asked) < 2:
        pass
    assert [remembered.get() for _ in range(20)] == [1] * 20
    go_on.set()
    slow.join(30)
    assert len(asked) == 2
    assert [TtlCache(ask, age_s=60).get() for _ in range(2)] == [3, 4]
    fresh = TtlCache(ask, age_s=60)
    assert [fresh.get() for _ in range(5)] == [5] * 5


def counting(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> FlaskClient:
    """The app whose Triton counted each of `answers` in turn, and nothing after the last."""
    left = list(answers)

    def ask(_: AppTriton, model: str, deadline: Deadline) -> list[ModelStatistics]:
        assert deadline.seconds <= 2
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    monkeypatch.setattr(lab, "_AGE_S", 60)
    monkeypatch.setattr(AppTriton, "statistics", ask)
    return client()


def test_a_look_has_all_models_by_name_and_is_kept_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = counting(monkeypatch, [COUNTED, NEVER_ASKED])
    told = browser.get("/lab/figures").get_json()
    assert browser.get("/lab/figures").get_json() == told
    assert [model["name"] for model in told["models"]] == ["idle", "m"]
    assert told["models"][1] == {
        **{"name": "m", "version": "2", "requests": 30, "failures": 1, "rows": 60, "executions": 20},
        **{"queue_ms": 6.0, "compute_ms": 60.0},
        "batches": [{"rows": 2, "executions": 10}, {"rows": 4, "executions": 10}],
    }


def test_that_triton_is_away_is_kept_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = counting(monkeypatch, TritonUnavailable("away"))
    for _ in range(3):
        assert browser.get("/lab/figures").status_code == 503


def test_the_page_says_which_of_several_tritons_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppTriton, "statistics", lambda *_: [COUNTED])
    monkeypatch.setattr(AppTriton, "config", lambda *_: {})
    browser = client(triton_url="127.0.0.1:1,127.0.0.1:2")
    said = "127.0.0.1:1, the first of 2 Tritons"
    assert browser.get("/lab/figures").get_json()["machine"] == [said]
    assert f"<span>{said}</span>" in browser.get("/lab").text
    # The first is left out while it does not answer: the figures are the other's.
    monkeypatch.setattr(AppTriton, "servers", lambda _: {"127.0.0.1:1": False, "127.0.0.1:2": True})
    browser = client(triton_url="127.0.0.1:1,127.0.0.1:2")
    assert browser.get("/lab/figures").get_json()["machine"] == ["127.0.0.1:2, the first of 2 Tritons"]
    monkeypatch.undo()
    monkeypatch.setattr(AppTriton, "statistics", lambda *_: [COUNTED])
    assert client().get("/lab/figures").get_json()["machine"] == []


METRICS = b"""# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
nv_cpu_utilization 0.25
nv_cpu_memory_total_bytes 24000000000
nv_cpu_memory_used_bytes 6000000000
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-a"} 1
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 80000000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 20000000000
nv_inference_count{model="m",version="1"} 7
"""


def test_how_busy_triton_s_machine_is_and_the_configs_are_told_where_they_are_known(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(METRICS) + METRICS
    url = f"http://{listen({'/metrics': metrics}).url}/metrics"
    monkeypatch.setattr(AppTriton, "statistics", lambda *_: [COUNTED])
    config = {"max_batch_size": 8, "instance_group": [{"kind": "KIND_CPU", "count": 1}]}
    monkeypatch.setattr(AppTriton, "config", lambda *_: config)
    browser = client(triton_metrics_url=url)
    told = browser.get("/lab/figures").get_json()
    assert told["machine"] == [
        "CPU: 25% busy, 6.00 of 24.0 GB of memory in use",
        "GPU 0: 100% busy, 20.0 of 80.0 GB of memory in use",
        "GPU 1: 50% busy",
    ]
    said = "1 instance on the CPU; batches of up to 8 rows; no dynamic batching"
    assert told["configs"] == {"m": said}
    page = browser.get("/lab").text
    assert f"<dd>{said}</dd>" in page
    assert "<span>GPU 1: 50% busy</span>" in page
    assert browser.get("/lab/sample").data[:2] == b"\xff\xd8"
    for nowhere in ("", "http://127.0.0.1:1/metrics"):
        assert client(triton_metrics_url=nowhere).get("/lab/figures").get_json()["machine"] == []


def test_the_table_has_means_and_says_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text = counting(monkeypatch, [COUNTED, NEVER_ASKED]).get("/lab").text
    idle, counted = re.findall(r'<tr><th scope="row">.*?</tr>', text, re.S)
    assert re.findall("<td>(.*?)</td>", counted) == ["30", "1", "60", "20", "3.00", "0.20", "2.00"]
    assert re.findall("<td>(.*?)</td>", idle) == ["0", "0", "0", "0", "–", "–", "–"]
    assert [lab.figure(value) for value in (0, 1.234, 12.34, 123.4, 1257.4)] == [
        *("0", "1.23", "12.3", "123", "1257")
    ]


# Reports


def test_reports_are_listed_the_latest_first_with_what_they_say(tmp_path: Path) -> None:
    write(tmp_path / "bench" / "older", SAYS, "older", "2026-11-20T10:00:00+00:00")
    write(tmp_path / "bench" / "food", SAYS, "the food lab")
    (tmp_path / "m.check.html").write_text("<title>m &amp; co,\n checked</title>")
    os.utime(tmp_path / "m.check.html", (0, 0))
    latest, older, checked = Reports(tmp_path).latest()
    assert [(report.title, report.says) for report in (latest, older, checked)] == [
        ("the food lab", SAYS),
        ("older", SAYS),
        ("m & co, checked", ""),
    ]
    assert latest.when.isoformat() == WHEN


def test_a_report_that_changed_is_read_again_and_one_that_went_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "_LIST_AGE_S", 0)
    write(tmp_path / "a", title="first")
    shown = Reports(tmp_path)
    (report,) = shown.latest()
    assert report.title == "first"
    write(tmp_path / "a", title="now a benchmark")
    assert [each.title for each in shown.latest()] == ["now a benchmark"]
    (tmp_path / "a" / "index.html").unlink()
    assert shown.page(report.id) is None
    assert shown.latest() == []
    assert Reports(tmp_path / "nowhere").latest() == []


@pytest.mark.parametrize("when", ["", "yesterday", "7", "2026-11-21T10:00:00", "9" * 400])
def test_a_date_that_is_none_leaves_its_page_in_the_list(tmp_path: Path, when: str) -> None:
    write(tmp_path / "odd", when=when)
    assert only(tmp_path).when.tzinfo


def test_texts_that_are_long_or_markup_stay_short_and_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    write(tmp_path / "evil", evil, evil * 50)
    write(tmp_path / "untitled", title="", when="")
    text = client(tmp_path).get("/lab").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert len(text) < 30_000
    assert "untitled/index.html" in text


@pytest.mark.parametrize(
    ("page", "framed"),
    [
        (
            "<!doctype html><title>x</title><body class=a><p>y",
            "<!doctype html><title>T</title><body class=a>BAR<p>y",
        ),
        ("<!doctype html><title>x</title><p>y", "<!doctype html>BAR<title>T</title><p>y"),
        ("<p>y", "<title>T</title>BAR<p>y"),
    ],
)
def test_a_report_is_shown_with_its_own_title_and_a_way_back(page: str, framed: str) -> None:
    assert lab.framed(page.encode(), "T", "BAR").decode() == framed


@pytest.mark.parametrize("part", [b"<title", b"<title>", b"<body", b" "])
def test_however_long_a_report_is_only_its_beginning_is_looked_at(part: bytes) -> None:
    """With 20 MB of `<title` one click kept a worker for a minute."""
    page = part * (400_000 // len(part))
    began = time.thread_time()
    assert lab.framed(page, "T", "BAR").endswith(page[lab._HEAD_BYTES :])
    assert time.thread_time() - began < 0.2


SECRET = "gourmet-admin-key"


def swapped_for_a_link(page: Path, elsewhere: Path) -> None:
    page.unlink()
    page.symlink_to(elsewhere / "index.html")


def swapped_for_a_hard_link(page: Path, elsewhere: Path) -> None:
    page.unlink()
    page.hardlink_to(elsewhere / "index.html")


def its_folder_swapped_for_a_link(page: Path, elsewhere: Path) -> None:
    page.parent.rename(page.parent.with_name("away"))
    page.parent.symlink_to(elsewhere)


def the_reports_folder_swapped_for_a_link(page: Path, elsewhere: Path) -> None:
    page.parents[1].rename(page.parents[1].with_name("away"))
    page.parents[1].symlink_to(elsewhere.parent)


def swapped_for_a_fifo(page: Path, _: Path) -> None:
    page.unlink()
    os.mkfifo(page)


def swapped_for_a_folder(page: Path, _: Path) -> None:
    page.unlink()
    page.mkdir()


def given_to_another_user(page: Path, _: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    os.chown(page, 65534, 65534)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "swap",
    [
        swapped_for_a_link,
        swapped_for_a_hard_link,
        its_folder_swapped_for_a_link,
        the_reports_folder_swapped_for_a_link,
        swapped_for_a_fifo,
        swapped_for_a_folder,
        given_to_another_user,
    ],
)
def test_what_a_report_was_swapped_for_since_it_was_listed_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path, Path], None]
) -> None:
    secret = write(tmp_path / "keys" / "own", title=SECRET)
    listed = write(tmp_path / "reports" / "own") / "index.html"
    monkeypatch.setattr(lab, "_LIST_AGE_S", 0)
    looks_again = client(tmp_path / "reports")
    monkeypatch.setattr(lab, "_LIST_AGE_S", 60)
    browser = client(tmp_path / "reports")
    address = f"/lab/reports/{only(tmp_path / 'reports').id}"
    assert browser.get(address).status_code == 200
    swap(listed, secret)
    found = browser.get(address)
    assert found.status_code == 404
    assert SECRET not in found.text
    # A list that is made afterwards passes it over, and waits for nobody to write to a FIFO.
    assert "own" not in looks_again.get("/lab/reports").text
    assert looks_again.get(address).status_code == 404


# The addresses


@pytest.mark.parametrize(
    "place", ["nothing", "..%2f..%2fetc%2fpasswd", "../../secret.html", "bench", "0" * 16, "%00"]
)
def test_a_report_is_reached_by_its_id_and_by_nothing_else(tmp_path: Path, place: str) -> None:
    write(tmp_path / "reports" / "bench", SAYS)
    (tmp_path / "secret.html").write_text("secret")
    browser = client(tmp_path / "reports")
    report = only(tmp_path / "reports")
    found = browser.get(f"/lab/reports/{report.id}")
    assert (found.status_code, found.mimetype) == (200, "text/html")
    assert "<h1>a page</h1>" in found.text
    policy = found.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    refused = browser.get(f"/lab/reports/{place}")
    assert refused.status_code == 404
    assert "secret" not in refused.text.replace("secret.html", "")


@pytest.mark.parametrize("guarded", [False, True], ids=["open", "keys and a rate"])
def test_while_triton_is_away_the_page_says_so_and_shows_the_reports(tmp_path: Path, guarded: bool) -> None:
    write(tmp_path / "bench", SAYS)
    settings = {"api_keys": ("k" * 16,), "rate_limit": Rate(1, 3600)} if guarded else {}
    browser = client(tmp_path, **settings)
    for _ in range(3):  # neither an API that takes a key nor photos that are counted
        page = browser.get("/lab")
        assert page.status_code == 200
        now = browser.get("/lab/figures", headers={"Accept": "application/json"})
        assert (now.status_code, now.get_json()["error"]["code"]) == (503, "triton_unavailable")
        assert "RateLimit" not in now.headers
    assert "Live figures are unavailable" in page.text
    assert "no Triton answers at 127.0.0.1:1" in page.text
    assert SAYS in page.text
    assert 'datetime="2026-11-21T10:00:00+00:00"' in page.text


def test_without_reports_it_says_how_to_make_one(tmp_path: Path) -> None:
    for folder, says in ((None, "set LAB_REPORTS"), (tmp_path / "empty", "from the folder empty")):
        text = client(folder).get("/lab").text
        assert says in text
        assert "gourmet bench run food_classifier" in text
        assert str(tmp_path) not in text


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    report = only(write(tmp_path / "bench", SAYS))
    browser = client(tmp_path, lab_page="off")
    for address in ("/lab", "/lab/figures", f"/lab/reports/{report.id}"):
        assert browser.get(address).status_code == 404
    assert 'href="/lab"' not in browser.get("/compare").text
    assert 'href="/lab"' in client().get("/compare").text
    with pytest.raises(SettingsError, match="LAB_PAGE is 'no': input should be 'on' or 'off'"):
        Settings.from_env({"LAB_PAGE": "no"})
    assert Settings.from_env({"LAB_REPORTS": "runs"}).lab_reports == Path("runs")
