"""What a benchmark computes and how it measures, and comparisons with other servers."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import math
import operator
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.stats import gmean, ttest_ind
from support.points import a_point

import foundation
from gourmet.bench import async_client, comparison, report, results, server_probe, stats, sweep, validity
from gourmet.bench.inputs import DataSource, rows_for
from gourmet.bench.results import (
    BatchSize,
    Bench,
    Estimate,
    Latency,
    LoadSpec,
    Point,
    Split,
    Usage,
    Window,
    read_results,
)
from gourmet.bench.transports import Http, RawReply, Request, RequestFailed, TritonHttp
from gourmet.bench.validity import Disturbed, WrongAnswers
from gourmet.bench.workload import Answers, MeasureOptions, check_possible
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.errors import GourmetError, UsageError
from gourmet.systems import registry
from gourmet.triton_client.statistics import ModelStatistics, by_version
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


def a_bench(*points: Point) -> Bench:
    return Bench("m", "gourmet bench run m", "2026-11-21T10:00:00+00:00", {"cpus": "2"}, "noise", points)


def test_an_interval_is_student_s_of_the_logarithms_and_never_below_zero() -> None:
    got = stats.interval([10.0, 12.0, 11.0])
    # Of the logarithms: 4.303 standard errors of 0.0527 each way.
    assert (got.value, got.low, got.high) == pytest.approx((11.0, 8.77, 13.80), abs=0.01)
    assert stats.interval([10.0]) == Estimate(10.0)
    # These two turns were once reported as 128.3 (-136.4–393.0).
    got = stats.interval([107.5, 149.1])
    assert 0 < (got.low or 0) < got.value < (got.high or 0)
    # If one of them counted nothing, there is no interval, and no error.
    assert stats.interval([0.0, 10.0]) == Estimate(5.0)


@pytest.mark.parametrize(
    ("figure", "outcome"),
    [
        (Estimate(1.81, 0.17, 19.81), None),
        (Estimate(1.81, 1.5, 2.2), True),
        (Estimate(0.9, 0.8, 1.04), False),
        (Estimate(0.9, 0.8, 1.2), None),
        (Estimate(1.81), None),
    ],
)
def test_a_figure_passes_a_limit_with_its_whole_interval(figure: Estimate, outcome: bool | None) -> None:
    assert comparison.above(figure, 1.05) is outcome
    assert comparison.below(figure, 1.05) is (None if outcome is None else not outcome)


def test_the_interval_of_a_ratio_includes_both_uncertainties() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        got = stats.ratio(list(random.normal(20, 1, 5)), list(random.normal(10, 0.5, 5)))
        held += (got.low or 9) <= 2 <= (got.high or 0)
    assert 0.91 <= held / 300 <= 0.99
    assert stats.ratio([2.0, 4.0], [0.0, 2.0]) == Estimate(3.0), "a window without an answer"


def test_the_loop_measures_windows_with_the_given_requests_in_flight() -> None:
    due, done = np.array([0.0, 0.5, 1.0, 1.5]), np.array([0.5, 1.0, 1.5, 2.5])
    first, second = stats.windows(due, done, 0.0, 2.0, 2)
    assert (first.requests_per_s, first.mean_ms) == (1.0, 500.0)
    assert second.requests_per_s == 2.0
    assert stats.in_flight(due, done, 0.0, 2.0) == 1.0
    assert stats.unsteadiness([90.0, 100.0, 130.0]) == pytest.approx(0.3)


def kept_up(answered: int, due: int) -> object:
    return validity.server_kept_up(answered=answered, due=due, seconds=1.0)


def counted(rows: int, sent: int, failed: int = 0) -> object:
    return validity.rows_counted(rows, sent, failed=failed)


@pytest.mark.parametrize(
    ("check", "figures", "error", "says"),
    [
        (validity.littles_law, (8, 128), validity.Disturbed, "128.00 and 8.00 .* in flight"),
        (validity.few_errors, ({"bad": 6}, 94, 0.05), validity.Untrusted, r"6 of 100 .* “bad”"),
        (counted, (60, 100), validity.CountsDisagree, "a cache answered the rest"),
        (counted, (101, 100), validity.CountsDisagree, "another client asks"),
        (validity.generator_had_time, (0.97,), validity.Disturbed, "97% of a core"),
        (validity.generator_was_punctual, (9.0, 20.0), validity.Disturbed, "9.0 ms late on average"),
        (kept_up, (50, 100), validity.ServerOverrun, "answers 50 of 100 requests a s"),
    ],
)
def test_a_check_that_fails_says_why(
    check: Callable[..., object], figures: tuple[Any, ...], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        check(*figures)


@pytest.mark.parametrize(
    ("check", "believed", "refused"),
    [
        (validity.few_errors, ({}, 99, 0.0), ({"bad": 1}, 99, 0.0)),
        (validity.few_errors, ({"bad": 5}, 95, 0.05), ({"bad": 6}, 94, 0.05)),
        (validity.littles_law, (8, 8.39), (8, 8.41)),
        (validity.littles_law, (8, 7.61), (8, 7.59)),
        (validity.steady, ([90, 100, 130], 0.31), ([90, 100, 130], 0.29)),
        (validity.steady, ([60, 100, 110], 0.41), ([60, 100, 110], 0.39)),
        (validity.generator_had_time, (0.89,), (0.91,)),
        (validity.generator_was_punctual, (0.9, 5.0), (1.1, 5.0)),
        (validity.generator_was_punctual, (1.9, 20.0), (2.1, 20.0)),
        (kept_up, (92, 100), (91, 100)),
        (counted, (100, 100), (99, 100, 5)),
        (counted, (101, 100, 1), (101, 100)),
    ],
)
def test_a_check_has_its_limit_where_it_says(
    check: Callable[..., object], believed: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    assert check(*believed)
    with pytest.raises(validity.Untrusted):
        check(*refused)


def test_a_late_client_is_blamed_for_what_waits_and_else_the_server() -> None:
    assert isinstance(validity.too_many_in_flight(9, 0.06), validity.Disturbed)
    assert isinstance(validity.too_many_in_flight(9, 0.04), validity.ServerOverrun)
    assert [validity.expected_deviation(100, poisson) for poisson in (True, False)] == [0.3, 0.02]


def test_figures_of_a_measurement_against_scipy_s() -> None:
    ours, theirs = [20.0, 22.0, 19.0, 21.0], [10.0, 13.0, 9.0]
    got = stats.ratio(ours, theirs)
    welch = ttest_ind(np.log(ours), np.log(theirs), equal_var=False).confidence_interval(0.95)
    assert (got.low, got.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))
    assert got.value == pytest.approx(gmean(ours) / gmean(theirs))
    assert stats.ratio([3.0], [2.0, 2.5]).low is None, "nothing is known of the noise of one"
    milliseconds = np.arange(1, 1001)
    latency, quantiles = stats.latency(milliseconds), np.quantile(milliseconds, (0.5, 0.9, 0.95, 0.99))
    assert [latency.p50, latency.p90, latency.p95, latency.p99] == pytest.approx([*quantiles])
    due, done = np.array([0.0, 0.1, 0.2]), np.array([0.4, 1.1, 1.4])
    assert [window.mean_ms for window in stats.windows(due, done, 0.0, 2.0, 2)] == pytest.approx([400, 1100])


def test_equal_windows_are_as_uncertain_as_counting_whole_requests() -> None:
    assert stats.interval([10.0, 10.0]) == Estimate(10.0)
    low, high = (lambda got: (got.low, got.high))(stats.interval([10.0, 10.0, 10.0], resolution=0.1))
    assert low is not None
    assert 8.0 < low < 9.0 < 11.0 < (high or 0) < 12.0


def test_a_point_has_rates_of_rows_and_the_mean_batch_of_its_executions() -> None:
    point = dataclasses.replace(
        a_point(),
        load=LoadSpec("m", 2, batch=4),
        windows=(Window(5.0, 1.0), Window(6.0, 1.0)),
        requests=20,
        batches=(BatchSize(4, 9, 1.0), BatchSize(8, 1, 2.0)),
    )
    assert point.rates == [20.0, 24.0]
    assert point.resolution == 0.1
    assert point.executed_rows == 4.4
    merged = stats.merge([point, dataclasses.replace(point, batches=(BatchSize(4, 1, 3.0),))])
    assert merged.batches == (BatchSize(4, 10, 1.2), BatchSize(8, 1, 2.0))


def test_counts_of_triton_are_the_difference_of_two_snapshots() -> None:
    def counts(executions: int) -> ModelStatistics:
        phases = ("queue", "compute_input", "compute_output")
        times: dict[str, Any] = {phase: {"ns": 1_000_000 * executions} for phase in phases}
        infer = {"count": executions, "ns": 8_000_000 * executions}
        times |= {"compute_infer": infer, "success": {"count": 2 * executions}}
        sizes = [{"batch_size": 4, "compute_infer": infer}]
        model = {"inference_count": 4 * executions, "inference_stats": times, "batch_stats": sizes}
        (statistics,) = by_version({"model_stats": [model]})
        return statistics
        return statistics

    got = counts(30).since(counts(10))
    assert (got.rows, got.requests) == (80, 40)
    assert server_probe.batches(got) == (BatchSize(4, 20, 8.0),)
    assert server_probe.split(got, 6.0) == Split(0.5, 0.5, 4.0, 0.5, 0.5)


def test_a_run_is_saved_and_read_back(tmp_path: Path) -> None:
    bench = a_bench(a_point(), a_point("other", windows=(Window(1.0, 2.0),)))
    (tmp_path / "a.json").write_text(results.as_json(bench))
    assert results.read_results(tmp_path / "a.json") == bench
    assert json.loads(results.as_json(bench))["points"][0]["demand"]["level"] == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no", "is not a whole benchmark"),
        ('{"schema": "gourmet-bench/0"}', "schema\n  Input should be 'gourmet-bench/1'"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(GourmetError, match=says):
        results.read_results(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [((100.0, 101.0, 99.5), "same"), ((96.0, 97.0, 96.5), "same"), ((80.0, 81.0, 80.5), "slower")],
)
def test_a_regression_is_what_noise_cannot_explain(rates: tuple[float, ...], verdict: str) -> None:
    before, now = a_bench(a_point(), a_point("gone")), a_bench(a_point(rates=rates))
    (pair,) = comparison.compare(before, now)
    assert pair.verdict == verdict
    if verdict == "slower":
        with pytest.raises(GourmetError, match=r"1 of 1 points .* throughput × 0.8"):
            comparison.refuse_slower([pair])
    else:
        comparison.refuse_slower([pair])


def test_where_the_rate_is_given_the_latency_decides() -> None:
    def at_a_rate(mean_ms: float) -> Bench:
        windows = tuple(Window(50.0, mean_ms + more) for more in (0.0, 0.1, 0.2))
        return a_bench(a_point(load=LoadSpec("m", 50, "poisson"), windows=windows))

    (pair,) = comparison.compare(at_a_rate(20.0), at_a_rate(30.0))
    assert (pair.verdict, round(pair.speed.value, 2)) == ("slower", 0.67)


def test_runs_of_other_things_are_not_compared() -> None:
    with pytest.raises(GourmetError, match="one has arm c=8, the other else c=8"):
        comparison.compare(a_bench(a_point()), a_bench(a_point("else")))


def test_turns_become_one_point_whose_interval_is_theirs() -> None:
    batches = (BatchSize(1, 50, 9.0), BatchSize(4, 50, 11.0))
    turns = [a_point(rates=(rate,) * 3, batches=batches) for rate in (90.0, 100.0, 110.0)]
    merged = stats.merge(turns)
    assert merged.rows_per_s == stats.interval([90.0, 100.0, 110.0])
    assert merged.batches == (BatchSize(1, 150, 9.0), BatchSize(4, 150, 11.0))
    assert (merged.turns, merged.requests, merged.executed_rows) == (3, 900, 2.5)


def test_csv_has_perf_analyzer_s_columns_in_microseconds() -> None:
    head, row = report.as_csv(a_bench(a_point())).splitlines()
    got = dict(zip(head.split(","), row.split(","), strict=True))
    assert (got["Concurrency"], got["Inferences/Second"], got["Server Queue"]) == ("8", "100.000", "8000")
    assert (got["p99 latency"], got["Network+Server Send/Recv"]) == ("30000", "1700")


def test_a_point_that_is_refused_says_that_it_was_too_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsteady(*_: object) -> Point:
        raise validity.Disturbed("the windows differ")

    monkeypatch.setattr(sweep, "measure", unsteady)
    _, (refused,) = sweep.run_sweep(None, [LoadSpec("m", 8)], None, None)  # type: ignore[arg-type]
    assert str(refused) == "m c=8: Rejected: too noisy (the windows differ)"


def test_the_chart_names_every_point_and_is_saved_beside_the_figures(tmp_path: Path) -> None:
    report.save(a_bench(a_point("<b>m"), a_point(level=16)), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.csv", "chart.svg"}
    drawing = (tmp_path / "chart.svg").read_text()
    texts = [element.text for element in ElementTree.fromstring(drawing).iter() if element.text]
    assert {"<b>m c=8: p95 23.0 ms", "arm c=16: p95 23.0 ms"} <= set(texts)


class StallingServer(TritonHttp):
    """Answers at once, one request at a time, but the tenth after 0.4 s."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._asked = 0

    def traffic(
        self, load: LoadSpec, check: Callable[..., None] = lambda *_: None, **more: float
    ) -> async_client.LoadGenerator:
        requests = itertools.repeat(Request((0,), b""))
        return async_client.LoadGenerator(self, requests, load, check, **more).run()  # type: ignore[arg-type]

    async def send(self, request: Request) -> RawReply:
        async with self._turn:
            self._asked += 1
            if self._asked == 10:
                await asyncio.sleep(0.4)
        return RawReply({}, b"")

    async def close(self) -> None:
        pass


def test_an_open_loop_counts_the_requests_that_a_stall_kept_waiting() -> None:
    load = LoadSpec("m", 100, "constant")
    traffic = StallingServer().traffic(load, warm_up_s=0.0, measure_s=0.8, max_late_s=60)
    due, _, done = traffic.arrays()
    # A closed loop would have one slow request; here all that fell due in the stall are slow.
    assert ((done - due) > 0.1).sum() >= 20
    assert traffic.holds(due).sum() >= 79


def test_a_closed_loop_times_each_request_from_its_sending_and_counts_failures() -> None:
    class FailingOnce(StallingServer):
        async def send(self, request: Request) -> RawReply:
            self.sent = getattr(self, "sent", 0) + 1
            if self.sent == 3:
                raise RequestFailed("broken")
            await asyncio.sleep(0.01)
            return RawReply({}, None)

    traffic = FailingOnce().traffic(LoadSpec("m", 2), measure_s=1.0)
    due, sent, done = traffic.arrays()
    assert len(due) > 5
    assert np.median(sent - due) < 0.01, "none waits for another"
    assert ((done - due) >= 0.01).all()
    assert (traffic.errors, len(traffic.failures)) == ({"broken": 1}, 1)


def test_an_open_loop_counts_from_the_moment_at_which_a_request_was_due() -> None:
    checked = list[int]()

    def check(*_: object) -> None:
        checked.append(1)
        if len(checked) == 5:
            time.sleep(0.3)

    traffic = StallingServer().traffic(LoadSpec("m", 100, "constant"), check, measure_s=0.8, max_late_s=60)
    due, sent, _ = traffic.arrays()
    assert (sent - due).max() > 0.2
    assert np.diff(np.sort(due)) == pytest.approx(0.01, abs=1e-6)


def test_a_load_that_the_client_cannot_send_in_time_ends() -> None:
    load = LoadSpec("m", 1_000_000, "constant")
    with pytest.raises(validity.Disturbed, match="the client cannot keep up"):
        StallingServer().traffic(load, max_in_flight=math.inf, max_late_s=0.1)
    overrun = validity.too_many_in_flight(4096, 0.0)
    assert isinstance(overrun, validity.ServerOverrun)
    assert "4096 requests wait" in str(overrun)


def test_inputs_with_equal_answers_are_refused_because_a_mix_up_would_not_show() -> None:
    same = [{"y": np.array([1.0, 2.0])}] * 3
    with pytest.raises(validity.WrongAnswers, match="all 3 inputs have the same answer"):
        Answers(same, True, "said")


# Inputs
def info(system: str = "", dims: tuple[int, ...] = (3,), datatype: str = "FP32") -> ModelInfo:
    inputs, outputs = TensorSpec("x", datatype, (-1, *dims)), TensorSpec("y", "FP32", (-1, 2))
    return ModelInfo("m", (inputs,), (outputs,), {"system": system} if system else {}, max_batch_size=8)


@pytest.mark.parametrize(
    "system", [name for name, known in registry.load_all().items() if known.task == "classification"]
)
def test_a_picture_system_s_default_kind_of_input_is_its_examples(system: str) -> None:
    known = registry.load(system)
    size = known.input_size  # type: ignore[attr-defined]
    channels = 1 if system == "digits" else 3
    rows = rows_for(info(system, (channels, size, size)), DataSource(4, 3))
    assert len(rows) == len(rows.pictures) == 4
    assert rows.tensor(rows.inputs[0], (0, 1)).shape == (2, channels, size, size)
    assert len(set(rows.pictures)) == 4
    again = rows_for(info(system, (channels, size, size)), DataSource(4, 3))
    assert again.pictures == rows.pictures


def test_a_text_system_s_inputs_are_text_files_or_its_examples(tmp_path: Path) -> None:
    text = TensorSpec("TEXT", "BYTES", (-1, 1))
    model = ModelInfo("m", (text,), (), {"system": "translator"}, max_batch_size=8)
    assert len({row.item() for row in rows_for(model, DataSource(4, 3)).values["TEXT"]}) == 4
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(f"Это {name}.")
    rows = rows_for(model, DataSource(9, folder=tmp_path))
    assert rows.examples == ("Это a.".encode(), "Это b.".encode())


def test_a_model_of_no_system_gets_noise_of_its_shape() -> None:
    rows = rows_for(info(), DataSource(3, 1))
    assert (len(rows), rows.pictures, rows.about) == (3, (), "3 rows of noise, seed 1")
    assert rows.tensor(rows.inputs[0], (0, 2)).dtype == np.float32


def test_rows_of_an_open_shape_come_from_arrays(tmp_path: Path) -> None:
    open_one = info(dims=(-1,))
    with pytest.raises(UsageError, match=r"has the open shape \[-1\]: give its rows as an \.npz"):
        rows_for(open_one, DataSource(2, 1))
    np.savez(tmp_path / "rows.npz", x=np.ones((3, 5), np.float32))
    rows = rows_for(open_one, DataSource(2, 1, tmp_path / "rows.npz"))
    assert rows.tensor(rows.inputs[0], (0, 1)).shape == (2, 5)
    with pytest.raises(UsageError, match=r"x is float32 \[2, 5\], and must be FP32 \[rows, 3\]"):
        rows_for(info(), DataSource(2, 1, tmp_path / "rows.npz"))


def test_a_folder_of_inputs_needs_a_system_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no system that says what its files mean"):
        rows_for(info(), DataSource(2, 1, tmp_path))
    with pytest.raises(UsageError, match=r"it has no files of \.jpeg, \.jpg"):
        rows_for(info("food11", (1,), "BYTES"), DataSource(2, 1, tmp_path))
    for name, example in zip("abc", registry.load("food11").examples(3, 1), strict=True):
        (tmp_path / f"{name}.jpg").write_bytes(example)
    rows = rows_for(info("food11", (1,), "BYTES"), DataSource(2, 1, tmp_path))
    assert (len(rows), rows.about) == (2, f"2 files of {tmp_path.name}")


def test_rows_of_other_lengths_share_no_request(tmp_path: Path) -> None:
    rows = rows_for(info(), DataSource(2, 1))
    rows.values["x"][1].resize((4,), refcheck=False)
    assert not rows.alike
    with pytest.raises(UsageError, match="differ in shape and cannot share a request"):
        check_possible(LoadSpec("m", batch=2), rows)
    check_possible(LoadSpec("m"), rows)


# Comparisons with other servers
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


def measured(*given: Any) -> Point:
    """Measure again where a pause of the machine disturbed it."""
    for _ in range(20):
        with suppress(Disturbed):
            return measure(*given)
    return measure(*given)


def looped(port: int) -> Point:
    return measured(LOAD, Http(f"127.0.0.1:{port}", "/"), REQUESTS, check, SHORT, {"server": os.getpid()})


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
        nobody = Http(f"127.0.0.1:{taken.getsockname()[1]}", "/")
        with pytest.raises(Disturbed, match=r"most windows of 0.3 s saw no answer"):
            measure(LOAD, nobody, REQUESTS, check, SHORT)


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
        point = measured(LoadSpec("", 1), InPool(pool, work), REQUESTS, lambda *_: None, SHORT)
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
