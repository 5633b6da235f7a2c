"""The comparison with peers: answers checked one by one, figures of the open window, goals by turn."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gourmet.errors import GourmetError
from gourmet.measure.validity import WrongAnswers
from gourmet.systems.food11 import contract
from peers import contenders, report, summary, traffic, venv, windows
from peers.expected import complaint, plain_decode
from peers.photo_sets import Kind, _draw
from peers.run import Comparison, Plan
from peers.traffic import ClosedLoop, CpuUsed, Endpoint, Recording, Seen, drive
from peers.windows import ContenderWindow

ROOT = Path(__file__).resolve().parents[2]
ROW = np.array([0.5, 0.3, 0.1, 0.1] + [0.0] * 7, np.float32)
ARM = contenders.CONTENDERS["fastapi-pool"]


def answer(**changes: Any) -> bytes:
    told = {"label": "Bread", "probability": 0.5, "top": [{"label": "Dairy product", "probability": 0.3}]}
    return json.dumps({**told, **changes}).encode()


def test_a_right_answer_has_nothing_to_complain_about() -> None:
    assert complaint(answer(probability=0.5011), ROW) is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (answer(probability=0.51), "Bread 0.5100 instead of 0.5000"),
        (answer(top=[{"label": "Egg", "probability": 0.3}]), "Egg 0.3000 instead of 0.1000"),
        (answer(label="Dairy product", probability=0.3), "Dairy product instead of Bread"),
        (answer(label="Pizza"), "no answer of a food model"),
        (answer(probability=float("nan")), "Bread nan instead of 0.5000"),
        (b"{}", "no answer of a food model"),
        (b"<html>", "no answer of a food model"),
    ],
)
def test_a_wrong_answer_is_said_with_both_values(body: bytes, says: str) -> None:
    assert says in str(complaint(body, ROW))


def seen(done: float, body: bytes | None = None, status: int = 200) -> Seen:
    return Seen(0, done - 0.1, done, status, answer() if body is None else body)


def some_traffic(*answers: Seen, failures: tuple[tuple[float, str], ...] = ()) -> Recording:
    return Recording(
        began=10.0,
        ended=12.0,
        seen=list(answers),
        failures=list(failures),
        before=CpuUsed({"server": 5.0}, 7.0, 20.0),
        after=CpuUsed({"server": 6.0}, 8.5, 22.0),
        client_cpu_s=0.1,
        memory_mib={"server": 300.0},
    )


def summarised(*answers: Seen, **more: Any) -> ContenderWindow:
    right = ROW[np.newaxis]
    return windows.summarise(ARM, "small", 0, ClosedLoop(8, 0.5, 2.0), some_traffic(*answers, **more), right)


def test_only_what_came_while_the_window_was_open_counts() -> None:
    window = summarised(seen(9.9), seen(10.1), seen(11.9), seen(12.1))
    assert window.photos_per_s == pytest.approx(1.0)
    assert window.cpu_ms == {"server": pytest.approx(500.0)}
    assert window.foreign_cores == pytest.approx(0.25)
    assert window.client_cores == pytest.approx(0.05)


def test_a_wrong_answer_ends_the_run_also_before_the_window() -> None:
    with pytest.raises(WrongAnswers, match=r"FastAPI.*photo 0 wrongly: .*Bread 0\.9000 instead of 0\.5000"):
        summarised(seen(9.0, answer(probability=0.9)), seen(11.0))


def test_errors_are_counted_and_never_averaged_in() -> None:
    window = summarised(
        seen(10.5),
        seen(11.0, b"busy", 503),
        seen(9.0, b"busy", 503),
        failures=((11.5, "reset"), (9.0, "reset")),
    )
    assert window.errors == ("reset", "HTTP 503: busy")
    assert len(window.latencies_s) == 1


def test_a_server_that_answers_nothing_has_no_speed() -> None:
    with pytest.raises(WrongAnswers, match="answered no small photo at 8 at a time: HTTP 500: oh"):
        summarised(seen(11.0, b"oh", 500))


class Answering(BaseHTTPRequestHandler):
    """Answers every fifth request with 503, and closes after every seventh."""

    protocol_version = "HTTP/1.1"
    count = 0
    lock = threading.Lock()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            Answering.count += 1
            number = Answering.count
        body = answer()
        self.send_response(503 if number % 5 == 0 else 200)
        self.send_header("Content-Length", str(len(body)))
        if number % 7 == 0:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_client_accounts_for_every_answer_of_a_server_that_errs_and_closes(port: int) -> None:
    import os

    came = drive(
        Endpoint(port, "/predict", {"server": os.getpid()}),
        [b"a", b"b" * 300_000],
        ClosedLoop(3, 0.1, 0.5),
        1,
    )
    statuses = [each.status for each in came.seen]
    assert len(statuses) > 20
    assert 0.1 < statuses.count(503) / len(statuses) < 0.3
    assert came.failures == []
    assert {each.photo for each in came.seen} == {0, 1}
    assert came.ended - came.began >= 0.5
    assert came.memory_mib["server"] > 1


def test_a_server_that_is_not_there_is_failures_and_no_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        endpoint = Endpoint(taken.getsockname()[1], "/predict")
        traffic._LONGEST_WARM_UP_S, before = 0.1, traffic._LONGEST_WARM_UP_S
        try:
            came = drive(endpoint, [b"a"], ClosedLoop(2, 0.05, 0.1), 1)
        finally:
            traffic._LONGEST_WARM_UP_S = before
    assert not came.seen
    assert "ConnectionRefusedError" in came.failures[0][1]


def window(
    arm: str, photos: str, rate: int, turn: int, concurrency: int = 8, slow_s: float = 0.04
) -> ContenderWindow:
    latencies = (0.01,) * (rate - 2) + (slow_s,) * 2
    return ContenderWindow(
        arm, photos, concurrency, turn, 1.0, latencies, (), {"server": 9.0}, {"server": 99.0}
    )


def results() -> Comparison:
    rates = {"limit-fp32": 100, "ours-fp32": 90, "fastapi-pool": 80, "litserve": 60, "ours-int8": 150}
    found = [
        window(arm, "small", rate + turn, turn, 2 if arm == "limit-fp32" else 8)
        for turn in range(2)
        for arm, rate in rates.items()
    ]
    found.append(window("litserve", "small", 85, 2))
    for arm in ("limit-fp32", "ours-fp32", "fastapi-pool", "ours-int8"):
        found.append(window(arm, "small", rates[arm], 2, 1 if arm == "limit-fp32" else 8))
    plan = Plan(tuple(rates), ("small",), (8,), turns=3, window_s=1.0)
    return Comparison(plan, ("small: 64 photos",), tuple(found), {"bentoml": "did not start"}, ("the same",))


def test_goals_are_ratios_turn_by_turn_against_whichever_peer_was_best() -> None:
    goals = {goal.what: goal for goal in summary.goals(results())}
    assert goals["small photos, fp32: ours ÷ the limit"].per_turn == pytest.approx((0.9, 91 / 101, 0.9))
    assert goals["small photos, fp32: ours ÷ the best peer"].per_turn == pytest.approx(
        (90 / 80, 91 / 81, 90 / 85)
    )
    assert goals["small photos, fp32: ours ÷ the limit"].met is True
    assert goals["small photos, fp32: our p99 ÷ the lowest p99 of a peer"].met is True


def test_the_report_goes_into_its_part_of_the_page_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / report.PAGE
    page.write_text(f"# Ours\n\nby hand\n\n{report._BEGIN}\nold\n{report._END}\n\nthe end\n")
    report.write(results(), {"cpus": "2 of 2"}, tmp_path, "2026-11-21")
    text = page.read_text()
    assert text.startswith("# Ours\n\nby hand\n")
    assert text.endswith("\nthe end\n")
    assert "old" not in text
    assert (
        "| small photos, fp32: ours ÷ the best peer | 1.12× (1.06–1.12)× | at least 1× | met |"
        in text.replace("1.12 (1.06–1.12)×", "1.12× (1.06–1.12)×")
    )
    assert "Left out: BentoML, two workers: did not start" in text
    data = json.loads((tmp_path / report.DATA).read_text())
    assert data["rows"][0]["photos_per_s"] == pytest.approx([100, 101, 100])
    assert (tmp_path / report.PICTURE).read_text().startswith("<svg ")


def test_what_others_disturbed_is_shown_and_not_judged() -> None:
    found = results()
    busy = tuple(replace(each, foreign_cores=0.5) for each in found.windows)
    said = report.as_markdown(replace(found, windows=busy), {}, "today")
    assert "| at least 0.85× | not judged: disturbed |" in said
    assert " met |" not in said


def test_a_page_without_a_place_for_the_report_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / report.PAGE).write_text("# Ours\n")
    with pytest.raises(GourmetError, match="add both"):
        report.write(results(), {}, tmp_path, "today")
    assert (tmp_path / report.PAGE).read_text() == "# Ours\n"


def test_plain_decoding_shows_small_photos_as_ours_does_to_the_last_bit() -> None:
    photo = _draw(Kind(1, 320, 240, 85), 3)
    assert np.array_equal(plain_decode()(photo), contract.SYSTEM.pixels(photo))


def test_packages_that_cannot_be_had_are_an_error_that_says_how_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("no-such-package==1\n")
    with pytest.raises(venv.PeersNotInstalled, match=r"no-such-package.*--arm"):
        venv.ensure(requirements=requirements)
    assert not venv.folder(requirements).exists()


def test_every_peer_s_package_is_pinned() -> None:
    pinned = [line for line in venv.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line for line in pinned)
    assert {"fastapi", "litserve", "bentoml"} <= {line.split("==")[0].split("[")[0] for line in pinned}


def test_an_arm_that_is_not_there_is_named_with_those_that_are() -> None:
    program = [sys.executable, "-P", str(ROOT / "benchmarks" / "peers")]
    ran = subprocess.run([*program, "--arm", "flask"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "Error: --arm 'flask' is not one of limit-fp32, ours-fp32" in ran.stderr


def test_the_verb_of_old_runs_the_program_with_its_status() -> None:
    gourmet = Path(sysconfig.get_path("scripts"), "gourmet")
    ran = subprocess.run([gourmet, "bench", "peers", "--arm", "flask"], capture_output=True, text=True)
    assert (ran.returncode, "is not one of limit-fp32" in ran.stderr) == (2, True)
