"""What `gourmet bench deployer` makes of its points: tables, a ranking, choices; and what is not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gourmet.measure import report, scenario, sweep
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import BatchSize, Estimate, Latency, LoadSpec, Point, Split, Usage, Window
from gourmet.measure.scenario import ArmResult, Points
from gourmet.measure.scenarios import deployer
from gourmet.measure.task import MeasureOptions
from gourmet.measure.without_server import Layout, LayoutResult
from gourmet.result_store import ResultStore


def plan(**more: object) -> deployer.Plan:
    usual: dict[str, object] = {
        "repository": Path("repository"),
        "log": Path("logs"),
        "architecture": "resnet50",
        "checkpoint": None,
        "formats": ("ts-script", "onnx"),
        "half": False,
        "batches": (1, 8),
        "levels": (1, 8),
        "engines": (1, 2),
        "delays_us": (0, 500),
        "rows": 4,
    }
    return deployer.Plan(**{**usual, **more})  # type: ignore[arg-type]


def point(arm: str, rate: float, p95: float, *, level: float = 1, batch: int = 1) -> Point:
    windows = tuple(Window(rate / batch * noise, p95) for noise in (0.99, 1.0, 1.01))
    return Point(
        arm=arm,
        load=LoadSpec("model", level, batch=batch, protocol="grpc"),
        client="perf_analyzer",
        rows_per_s=Estimate(rate),
        latency_ms=Latency(0.9 * p95, 0.8 * p95, 0.95 * p95, p95, 1.1 * p95),
        split_ms=Split(1.0, 0.1, 5.0, 0.1, 0.5),
        batches=(BatchSize(4, 10, 5.0),),
        windows=windows,
        requests=100,
        errors={},
        usage=Usage(0.1),
        checks=(),
        config={},
    )


POINTS = [
    point("onnx static", 100, 10),
    point("onnx static", 160, 50, batch=8),
    point("onnx dynamic, 1 engine", 100, 11),
    point("onnx dynamic, 1 engine", 120, 70, level=8),
    point("onnx dynamic, 2 engines", 170, 48, level=8),
]


def test_each_format_has_its_batches_and_its_requests_by_engines_and_delays() -> None:
    arms = list(plan().arms())
    assert len(arms) == 2 * (1 + 2 * 2)
    assert {len(arm.loads) for arm in arms} == {2}
    assert [arm.name for arm in arms if arm.name.endswith("static")] == ["ts-script static", "onnx static"]
    assert {arm.model for arm in arms} == {"model_ts_script", "model_onnx"}
    assert plan(half=True).model("ts-trace") == "model_ts_trace_fp16"
    static, dynamic = arms[0], arms[2]
    assert (static.name, static.loads[1].batch, static.loads[1].level) == ("ts-script static", 8, 1)
    assert (dynamic.name, dynamic.loads[1].batch) == ("ts-script dynamic, 1 engine, delay 0.5 ms", 1)
    assert dynamic.loads[1].level == 8


def test_the_tables_are_the_example_s() -> None:
    static, dynamic, _ = deployer.tables(POINTS)
    assert static[0] == "onnx static"
    assert static[1][0][0] == "Batch size"
    assert dynamic[1][0] == (
        "Concurrent requests",
        "Throughput (img/s)",
        "Avg. Latency (ms)",
        "90% Latency (ms)",
        "95% Latency (ms)",
        "99% Latency (ms)",
    )
    assert dynamic[1][1][1] == ("8", "120.0", "63.00", "66.50", "70.00", "77.00")


def test_for_each_latency_it_says_the_fastest_within() -> None:
    _, rows = deployer.choices(POINTS)
    assert [row[:2] for row in rows] == [
        ("10 ms", "onnx static c=1 gRPC"),
        ("50 ms", "onnx dynamic, 2 engines c=8 gRPC"),
    ]
    _, ranked = deployer.ranking(POINTS)
    assert [row[1] for row in ranked] == ["170.0", "160.0", "120.0"]


@pytest.mark.parametrize(("rate", "seen"), [(170.0, True), (120.0, False)])
def test_dynamic_batching_is_held_against_batches_of_the_client(rate: float, seen: bool) -> None:
    dynamic = point("onnx dynamic, 2 engines", rate, 48, level=8)
    found = list(deployer._findings(plan(), [*POINTS[:-1], dynamic]))
    assert found[-1].seen is seen
    assert "8 requests of one picture are as fast as one request of 8" in found[-1].says
    assert "in batches of 4.0" in found[-1].says


def bare(*pictures_per_s: float) -> tuple[LayoutResult, ...]:
    """By the size of a batch: 1 and 8."""
    rates = zip((1, 8), pictures_per_s, strict=True)
    return tuple(LayoutResult(Layout(1, 2), rate / size, 1.0, 1.0) for size, rate in rates)


def test_what_triton_costs_is_compared_with_the_file_without_a_server() -> None:
    without = [bare(100.0, 100.0), bare(200.0, 160.0)]
    (goal,) = deployer._goals(plan(), Points(POINTS, without))
    assert goal.per_turn == (0.5, 1.0)
    assert goal.what.startswith("onnx: through Triton ÷ without a server")


def test_a_load_whose_requests_would_wait_long_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = next(arm for arm in plan(levels=(4, 256)).arms() if arm.loads[0].level == 4)
    monkeypatch.setattr(sweep, "measure", lambda _w, load, *_: point(arm.name, 4.0, 250, level=load.level))
    nobody: Any = None
    found, refused = sweep.run(nobody, arm.loads, nobody, MeasureOptions(), arm.name)
    assert [each.load.level for each in found] == [4]
    assert [str(each).endswith("a request would wait for 64 s") for each in refused] == [True]


def test_a_benchmark_whose_arms_are_all_there_needs_no_server(tmp_path: Path) -> None:
    """Neither to measure nor to deploy anything again; its page, tables and CSV are of what is stored."""
    asked = plan(repository=tmp_path / "models", log=tmp_path / "logs", formats=("onnx",), engines=(1,))
    options = MeasureOptions()
    model = asked.repository / asked.model("onnx")
    (model / "1").mkdir(parents=True)
    weights = {"weights": "none: initialised at random from seed 0"}
    about = {"deployer": "onnx", "network": {"config": "resnet50"}, "training": weights}
    about |= {"config": {"max_batch_size": 8}}
    (model / "1" / "manifest.json").write_text(json.dumps(about))
    plan_of = scenario.plan_of(asked.scenario(None, options), options, DataSource(asked.rows), turns=1)
    store = ResultStore(asked.results(options), plan_of, ArmResult)
    for arm in asked.arms():
        points = [point(arm.name, 100, 10, level=each.level, batch=each.batch) for each in arm.loads]
        beside = bare(102.0, 102.0) if arm.name in asked.static else ()
        store.put(ArmResult(tuple(points), (), beside, "4 rows of noise"), 0, arm.name)

    done = deployer.run(asked, None, options)

    assert len(done.points) == 2 + 2 * 2
    assert done.data == "4 rows of noise"
    assert [goal.met for goal in done.goals] == [True]
    assert not done.refused
    assert [found.seen for found in done.findings] == [True] * 2
    folder = deployer.save(done, asked.log)
    assert report.load(folder).points == done.points
    page, text = (folder / "index.html").read_text(), (folder / "tables.md").read_text()
    for words in ("95 % of requests within", "99% Latency (ms)", "onnx dynamic, 1 engine, delay 0.5 ms"):
        assert words in page
        assert words in text
    assert "Every configuration, the fastest first" in page
    assert "p99 latency" in (folder / "bench.csv").read_text()
    # Another window is another measurement.
    other = MeasureOptions(window_s=2.0)
    assert asked.results(other) != asked.results(options)
