"""Comparisons with other servers: figures of the open window, contenders in turns, goals, failures."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import foundation
from gourmet.bench.transports import Http, RawReply, Request
from gourmet.bench.validity import WrongAnswers
from gourmet.bench.workload import MeasureOptions
from gourmet.errors import GourmetError, UsageError
from harness import (
    BenchLoad,
    BenchWindow,
    Contender,
    DidNotStart,
    DocsPart,
    Goal,
    Measure,
    programs,
    ratio_goal,
    rows_of,
    run,
    started,
)
from harness import window as measure_window

SHORT = MeasureOptions(window_s=0.6, windows=1, warm_up_s=0.1)
LOAD = BenchLoad("arm", 3, "small")


def window(arm: str = "arm", per_s: int = 100, foreign_cores: float = 0.0) -> BenchWindow:
    return BenchWindow(BenchLoad(arm, 8), 1.0, (10.0,) * per_s, foreign_cores)


class FailingServer(BaseHTTPRequestHandler):
    """Answers every fifth request with 503, and closes after every seventh."""

    protocol_version = "HTTP/1.1"
    count = 0
    lock = threading.Lock()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            FailingServer.count += 1
            number = FailingServer.count
        body = b"right"
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
    with ThreadingHTTPServer(("127.0.0.1", 0), FailingServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


REQUESTS = [Request((0,), b"a"), Request((1,), b"b" * 300_000)]


def check(request: Request, reply: RawReply) -> None:
    assert reply.body == b"right"


def looped(port: int) -> BenchWindow:
    wire = Http(f"127.0.0.1:{port}", "/")
    return measure_window(LOAD, wire, REQUESTS, check, SHORT, groups={"server": os.getpid()})


def test_every_answer_of_a_server_that_errs_and_closes_is_accounted_for(port: int) -> None:
    answers = errors = 0
    while answers + errors < 20:  # a busy machine's window may have fewer
        measured = looped(port)
        answers, errors = len(measured.latencies_ms), sum(measured.errors.values())
    assert 0.05 < errors / (answers + errors) < 0.4, "errors are counted and never averaged in"
    assert list(measured.errors) == ["HTTP 503: right"]
    assert measured.seconds >= 0.6
    assert measured.per_s == pytest.approx(answers / measured.seconds)
    assert measured.cpu_ms["server"] > 0
    assert measured.memory_mib["server"] > 1


def test_a_server_that_answers_nothing_has_no_speed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        with pytest.raises(UsageError, match=r"arm, small, 3 at a time: no answer in .*Connect call failed"):
            looped(taken.getsockname()[1])


def test_a_wrong_answer_ends_the_run_also_before_the_window(port: int) -> None:
    def is_wrong(request: Request, reply: RawReply) -> None:
        raise WrongAnswers("photo 0 wrongly: Bread")

    with pytest.raises(WrongAnswers, match="photo 0 wrongly"):
        measure_window(LOAD, Http(f"127.0.0.1:{port}", "/"), REQUESTS, is_wrong, SHORT)


def contender(arm: str, calls: list[str], foreign: list[float] | None = None) -> Contender:
    @contextmanager
    def start() -> Iterator[Measure]:
        calls.append(arm)
        yield lambda load: replace(window(arm, foreign_cores=foreign.pop(0) if foreign else 0.0), load=load)

    return Contender(arm, [BenchLoad(arm, level) for level in (1, 8)], start)


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    rows, _ = run([contender("a", calls), contender("b", calls)], 2, lambda *_: None)
    assert calls == ["a", "b", "a", "b"]
    assert [(row.load.arm, row.load.level) for row in rows] == [("a", 1), ("a", 8), ("b", 1), ("b", 8)]
    assert {len(row.windows) for row in rows} == {2}


def test_the_quietest_of_three_windows_counts() -> None:
    foreign = [0.5, 0.3, 0.4, 0.05]
    rows, _ = run([contender("a", [], foreign)], 1, lambda *_: None)
    assert [row.windows[0].foreign_cores for row in rows] == [0.5, 0.3], "a run of two may repeat none"
    foreign = [0.5, 0.3, 0.05, *[0.0] * 9]
    rows, _ = run([contender(arm, [], foreign) for arm in "abcdef"], 1, lambda *_: None)
    assert rows[0].windows[0].foreign_cores == 0.05


def test_a_contender_that_does_not_start_is_left_out_with_the_reason() -> None:
    @contextmanager
    def start() -> Iterator[Measure]:
        with started("a server", [sys.executable, "-c", "exit('no port')"], {}, Path("/"), refuse) as pid:
            raise AssertionError(pid)
        yield lambda load: window()

    def refuse() -> None:
        raise ConnectionRefusedError

    rows, left_out = run([Contender("x", [LOAD], start), contender("a", [])], 2, lambda *_: None)
    assert left_out == {"x": "a server ended with status 1; its last lines: no port"}
    assert {row.load.arm for row in rows} == {"a"}
    with pytest.raises(DidNotStart), start():
        pass


def test_goals_are_ratios_turn_by_turn_against_whichever_was_best() -> None:
    rates = {"ours": (90, 90), "one": (80, 60), "other": (60, 100)}
    windows = [window(arm, rates_of_arm[turn]) for turn in (0, 1) for arm, rates_of_arm in rates.items()]
    ours, *others = rows_of(windows)
    (goal,) = ratio_goal("ours ÷ the best", ours, others, 1.0)
    assert goal.per_turn == pytest.approx((90 / 80, 0.9))
    assert goal.verdict == "not decided"
    assert ratio_goal("ours ÷ the best", None, others, 1.0) == []


@pytest.mark.parametrize(
    ("per_turn", "at_most", "verdict"),
    [
        ((1.0, 1.2), False, "met"),
        ((0.7, 0.9), False, "not met"),
        ((0.86, 1.03, 1.12), False, "not decided"),
        ((0.99,), True, "met"),
    ],
)
def test_a_goal_is_met_where_every_turn_reaches_it(
    per_turn: tuple[float, ...], at_most: bool, verdict: str
) -> None:
    assert Goal("ours ÷ the best peer", per_turn, 1.0, at_most).verdict == verdict


def test_a_disturbed_window_is_marked_and_not_judged() -> None:
    ours, busy = rows_of([window("ours"), window("busy", foreign_cores=0.5)])
    (goal,) = ratio_goal("ours ÷ busy", ours, [busy], 1.0)
    assert (goal.verdict, ours.name, busy.name) == ("not judged: disturbed", "ours", "busy *")


def test_a_page_without_a_marker_for_its_part_stays_unchanged(tmp_path: Path) -> None:
    part = DocsPart("make bench-x", "x.md")
    (tmp_path / "x.md").write_text("# Ours\n")
    with pytest.raises(GourmetError, match="add both"):
        part.publish("words", 1, 1.0, {}, tmp_path)
    assert (tmp_path / "x.md").read_text() == "# Ours\n"


@pytest.mark.slow
def test_unavailable_packages_are_an_error_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("no-such-package==1\n")
    with pytest.raises(GourmetError, match="no-such-package"):
        programs(requirements)
    assert not any((tmp_path / "gourmet").iterdir())


def test_what_triton_adds_is_taken_turn_by_turn() -> None:
    def measured(arm: str, level: int, took_ms: float, per_s: int, **figures: float) -> BenchWindow:
        return BenchWindow(BenchLoad(arm, level), 1.0, (took_ms,) * per_s, 0.0, figures=figures)

    turns = [
        window
        for slower_ms in (0.0, 1.0)
        for window in (
            measured(foundation.ALONE, 0, 10.0, 100),
            measured(foundation.SINGLE, 1, 12.0 + slower_ms, 80, **{"inside ms": 11.0}),
            measured(foundation.SEVERAL, 8, 80.0, 90),
            measured(foundation.OURS, 8, 20.0, 400),
            measured(foundation.LABS, 8, 80.0, 100),
        )
    ]
    goals = {goal.what: goal for goal in foundation.goals(rows_of(turns))}
    assert goals["added inside Triton, one request at a time, mean"].per_turn == (1.0, 1.0)
    assert goals["added for HTTP, p50"].per_turn == (2.0, 3.0)
    assert goals["best through Triton ÷ best without a server"].per_turn == (0.9, 0.9)
    assert goals["our model.py ÷ a lab's, c=8"].verdict == "met"
    assert len(goals) == 4, "no goal about gRPC, which was not measured"
