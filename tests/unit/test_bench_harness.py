"""Comparisons with other servers: figures of the open window, contenders in turns, goals, failures."""

from __future__ import annotations

import operator
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from support.points import a_point

import foundation
from gourmet.bench import sweep
from gourmet.bench.results import Estimate, Latency, LoadSpec, Point, Split, Usage, read_results
from gourmet.bench.transports import Http, RawReply, Request
from gourmet.bench.validity import Disturbed, WrongAnswers
from gourmet.bench.workload import MeasureOptions
from gourmet.errors import GourmetError
from harness import (
    Contender,
    DidNotStart,
    Goal,
    InPool,
    Measure,
    Row,
    measure,
    measure_in_turns,
    no_server,
    programs,
    publish,
    ratio_goal,
    started,
)

# Figures that nobody needs to believe.
SHORT = MeasureOptions(window_s=0.3, windows=2, warm_up_s=0.1, steadiness=1e9)
LOAD = LoadSpec("small", 3)


def a_row(arm: str = "arm", per_s: tuple[float, ...] = (100.0,), others: float = 0.0, **more: Any) -> Row:
    """A row with a turn for each rate."""
    usage = Usage(0.1, 1.0, others_cores=others)
    points = [a_point(arm, (rate, rate, rate), usage=usage, **more) for rate in per_s]
    return Row(dict(enumerate(points)))


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


def looped(port: int) -> Point:
    return measure(LOAD, Http(f"127.0.0.1:{port}", "/"), REQUESTS, check, SHORT, {"server": os.getpid()})


def test_every_answer_of_a_server_that_errs_and_closes_is_accounted_for(port: int) -> None:
    point = looped(port)
    while point.requests + sum(point.errors.values()) < 20:  # a busy machine's window may have fewer
        point = looped(port)
    errors = sum(point.errors.values())
    assert 0.05 < errors / (point.requests + errors) < 0.6, "errors are counted and never averaged in"
    assert list(point.errors) == ["HTTP 503: right"]
    assert point.rows_per_s.value == pytest.approx(fmean(point.rates))
    assert (point.usage.server_cores or 0) > 0
    assert (point.usage.server_memory_mib or 0) > 1
    littles_law = next(check for check in point.checks if check.name == "Little's law")
    assert littles_law.allowed == "5%", "requests that failed were in flight, too"


def test_a_server_that_answers_nothing_has_no_speed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        with pytest.raises(Disturbed, match=r"most windows of 0.3 s saw no answer"):
            looped(taken.getsockname()[1])


def test_a_wrong_answer_ends_the_run_also_before_the_window(port: int) -> None:
    def is_wrong(request: Request, reply: RawReply) -> None:
        raise WrongAnswers("photo 0 wrongly: Bread")

    with pytest.raises(WrongAnswers, match="photo 0 wrongly"):
        measure(LOAD, Http(f"127.0.0.1:{port}", "/"), REQUESTS, is_wrong, SHORT)


def test_work_in_threads_of_this_process_does_not_count_as_a_busy_client() -> None:
    def work(_: object) -> None:
        ends = time.thread_time() + 0.005
        while time.thread_time() < ends:
            pass

    with ThreadPoolExecutor(1) as pool:
        point = measure(LoadSpec("", 1), InPool(pool, work), REQUESTS, lambda *_: None, SHORT)
    assert "client busy" not in {check.name for check in point.checks}


def test_without_a_server_rows_are_computed_in_processes_and_checked() -> None:
    def is_triple(request: Request, reply: RawReply) -> None:
        if reply.body != [3 * number for number in request.body]:
            raise WrongAnswers("not three times the number")

    point = no_server(1, SHORT, is_triple, 10, partial, operator.mul, 3)
    assert point.rows_per_s.value == pytest.approx(fmean(point.rates)), "by row, not by call"


def contender(arm: str, calls: list[str], others: list[float] | None = None) -> Contender:
    @contextmanager
    def start() -> Iterator[Measure]:
        calls.append(arm)

        def measure_load(_arm: str, load: LoadSpec) -> Point:
            return a_point(load=load, usage=Usage(0.1, others_cores=others.pop(0) if others else 0.0))

        yield measure_load

    return Contender(arm, [(arm, LoadSpec("m", level)) for level in (1, 8)], start)


def test_contenders_take_turns_in_alternating_order() -> None:
    calls: list[str] = []
    rows, _ = measure_in_turns([contender("a", calls), contender("b", calls)], 2, lambda *_: None)
    assert calls == ["a", "b", "b", "a"]
    assert [(row.point.arm, row.at_a_time) for row in rows] == [("a", 1), ("a", 8), ("b", 1), ("b", 8)]
    assert {row.point.turns for row in rows} == {2}


def test_the_quieter_of_two_points_counts() -> None:
    rows, _ = measure_in_turns([contender("a", [], [0.5, 0.3, 0.05])], 1, lambda *_: None)
    assert [row.point.usage.others_cores for row in rows] == [0.3, 0.05]
    assert [row.point.arm for row in rows] == ["a *", "a"]


def test_a_point_that_is_disturbed_every_time_is_left_out_with_the_reason() -> None:
    def disturbed(*_: object) -> Point:
        raise Disturbed("the windows differ")

    noisy = Contender("x", [("x", LOAD)], lambda: nullcontext(disturbed))
    assert measure_in_turns([noisy], 1, lambda *_: None) == ([], {"x c=3": "the windows differ"})


def test_a_contender_that_does_not_start_is_left_out_with_the_reason() -> None:
    @contextmanager
    def start() -> Iterator[Measure]:
        with started("a server", [sys.executable, "-c", "exit('no port')"], {}, Path("/"), refuse) as pid:
            raise AssertionError(pid)
        yield sweep.measure

    def refuse() -> None:
        raise ConnectionRefusedError

    missing = Contender("x", [("x", LOAD)], start)
    rows, left_out = measure_in_turns([missing, contender("a", [])], 2, lambda *_: None)
    assert left_out == {"x": "a server ended with status 1; its last lines: no port"}
    assert {row.point.arm for row in rows} == {"a"}
    with pytest.raises(DidNotStart), start():
        pass


def test_goals_are_ratios_turn_by_turn_against_whichever_was_best() -> None:
    ours, one, other = a_row("ours", (90, 90)), a_row("one", (80, 60)), a_row("other", (60, 100))
    (goal,) = ratio_goal("ours ÷ the best", ours, [one, other], 1.0)
    assert goal.figure.value == pytest.approx((90 / 80 + 0.9) / 2)
    assert goal.verdict == "not decided"
    assert ratio_goal("ours ÷ the best", None, [one], 1.0) == []


def test_a_turn_in_which_one_was_not_measured_is_not_compared() -> None:
    ours, other = a_row("ours", (90, 90, 95)), a_row("other", (30, 45, 45))
    (goal,) = ratio_goal("ours ÷ the other", ours, [Row({2: other.turns[2]})], 1.0)
    assert goal.figure == Estimate(pytest.approx(95 / 45))


@pytest.mark.parametrize(
    ("figure", "at_most", "verdict"),
    [
        (Estimate(1.1, 1.05, 1.2), False, "met"),
        (Estimate(0.8, 0.7, 0.9), False, "not met"),
        (Estimate(0.9, 0.85, 0.99), True, "met"),
        (Estimate(0.9), True, "not decided"),
    ],
)
def test_a_goal_is_met_by_the_whole_interval(figure: Estimate, at_most: bool, verdict: str) -> None:
    assert Goal("ours ÷ the best peer", figure, 1.0, at_most).verdict == verdict


def test_a_disturbed_row_is_marked_and_not_judged() -> None:
    ours, busy = a_row("ours"), a_row("busy", others=0.5)
    (goal,) = ratio_goal("ours ÷ busy", ours, [busy], 1.0)
    assert (goal.verdict, ours.point.arm, busy.point.arm) == ("not judged: disturbed", "ours", "busy *")


def test_the_goals_are_printed_and_the_figures_saved_as_those_of_gourmet_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, busy = a_row("ours", (90, 91)), a_row("busy", others=0.5)
    goal = Goal("ours ÷ busy", Estimate(1.0), 1.0)
    publish("A title", "two photos", [ours, busy], [goal], {"peer": "did not answer"})
    printed = capsys.readouterr().out
    for words in ("ours ÷ busy", "at least 1×", "busy * c=8", "peer: Rejected: did not answer"):
        assert words in printed
    (saved,) = (tmp_path / "runs" / "bench").iterdir()
    assert [point.turns for point in read_results(saved).points] == [2, 1]
    assert "busy * c=8" in (saved / "chart.svg").read_text()


def test_missing_servers_are_an_error_that_names_the_command() -> None:
    with pytest.raises(GourmetError, match="`make bench-nobody` installs"):
        programs("nobody")


def test_what_triton_adds_is_taken_turn_by_turn() -> None:
    def measured(arm: str, level: int, took_ms: float, per_s: float = 100, inside_ms: float = 0.0) -> Row:
        more = {"latency_ms": Latency(*[took_ms] * 5), "split_ms": Split(0, 0, inside_ms, 0, 1)}
        return Row(dict(enumerate([a_point(arm, (per_s,) * 3, level, **more)] * 2)))

    rows = [
        measured(foundation.ALONE, 1, 10.0),
        measured(foundation.SINGLE, 1, 12.5, per_s=80, inside_ms=11.0),
        measured(foundation.SEVERAL, 8, 80.0, per_s=90),
        measured(foundation.OURS, 8, 20.0, per_s=400),
        measured(foundation.LABS, 8, 80.0),
    ]
    figures = {goal.name: goal.figure.value for goal in foundation.goals(rows)}
    assert figures == {
        "added inside Triton, one request at a time, mean": 1.0,
        "added for HTTP, p50": 2.5,
        "best through Triton ÷ best without a server": pytest.approx(0.9),
        "our model.py ÷ one as labs write it, c=8": pytest.approx(4.0),
    }, "no goal about gRPC, which was not measured"
