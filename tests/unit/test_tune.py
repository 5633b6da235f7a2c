"""The search space, ranking and wording of `gourmet tune`, and changes of a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from google.protobuf import text_format
from support.cli import said
from support.points import a_point
from tritonclient.grpc import model_config_pb2

from gourmet.bench import stats
from gourmet.bench.results import BatchSize, Bench, Estimate, Latency, Point, Split, Usage, Window
from gourmet.bench.tuning import PRESENT, FinalComparison, Grid, Trial, TuneRequest, Tuning, sentence
from gourmet.errors import UsageError
from gourmet.repository.config_change import VARIANTS, Change, changed
from gourmet.repository.config_file import model_config, tensor
from gourmet.triton_client.model_config import as_pbtxt, parse, summary

RUNNING: dict[str, Any] = {
    "name": "m",
    "backend": "onnxruntime",
    "platform": "onnxruntime_onnx",
    "runtime": "model.py",
    "max_batch_size": 16,
    "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 1}],
}
QUEUED = {**RUNNING, "dynamic_batching": {"default_queue_policy": {"max_queue_size": 9}}}


def around(running: dict[str, Any] = RUNNING, **more: Any) -> Grid:
    return Grid(running, TuneRequest("m", **{"cpus": 2, "levels": (16,), **more}))


def request(p95_ms: float | None) -> TuneRequest:
    return TuneRequest("m", p95_ms, levels=(8,), cpus=2)


def described(grid: Grid) -> str:
    return "\n".join(grid.described(3, 1.0, 2.0))


def batching(instances: int, threads: int | None, delay_us: int) -> Change:
    return Change(instances, threads, dynamic_batching=True, delay_us=delay_us, preferred_batches=())


def point(rate: float = 100, p95: float = 10, arm: str = PRESENT, level: float = 8, **more: Any) -> Point:
    windows = tuple(Window(rate * factor, p95) for factor in (0.99, 1, 1.01))
    usual: dict[str, Any] = {
        "split_ms": Split(4, 0, 5, 0, 1),
        "batches": (BatchSize(1, 100, 5.0),),
        "usage": Usage(0.1, 1.0),
        "rows_per_s": Estimate(rate, rate * 0.98, rate * 1.02),
        "latency_ms": Latency(p95 / 2, p95 / 2, p95, p95, p95),
    }
    return a_point(arm, level=level, config=RUNNING, **{"windows": windows, **usual, **more})


def test_the_grid_has_every_layout_without_batching_and_with_each_delay() -> None:
    grid = around().changes()
    assert {(change.instances, change.threads) for change in grid} == {(1, 2), (1, 1), (2, 1), (4, 1)}
    assert len(set(grid)) == 4 * (1 + 3)


@pytest.mark.parametrize(
    ("grid", "because"),
    [
        (around({**RUNNING, "max_batch_size": 0}), "max_batch_size is 0"),
        (around(levels=(1,)), "no two requests"),
    ],
)
def test_a_model_without_batching_is_tuned_by_layout_alone_with_the_reason(grid: Grid, because: str) -> None:
    assert {change.dynamic_batching for change in grid.changes()} == {False}
    assert because in described(grid)


def test_delays_that_cannot_keep_the_goal_are_not_tried() -> None:
    delays = {change.delay_us for change in around(p95_ms=1, delays_us=(0, 300, 700)).changes()}
    assert delays == {None, 0, 300}  # 0.7 ms of waiting keeps no goal of 1 ms


def test_a_queue_policy_stays_whatever_is_tried() -> None:
    queued = around(QUEUED)
    assert all(change.dynamic_batching for change in queued.changes())
    assert "queue policy" in described(queued)
    assert changed(QUEUED, batching(2, 1, 100))["dynamic_batching"] == {
        "default_queue_policy": {"max_queue_size": 9},
        "max_queue_delay_microseconds": 100,
        "preferred_batch_size": [],
    }


def test_on_a_gpu_thread_counts_are_not_tried() -> None:
    gpu = around({**RUNNING, "instance_group": [{"kind": "KIND_GPU", "gpus": [0], "count": 1}]})
    assert {change.threads for change in gpu.changes()} == {None}
    configs = [changed(gpu.running, change) for change in gpu.changes()]
    assert {config["instance_group"][0]["kind"] for config in configs} == {"KIND_GPU"}


@pytest.mark.parametrize(
    "more",
    [
        {"ensemble_scheduling": {}},
        {"sequence_batching": {}},
        {"model_transaction_policy": {"decoupled": True}},
    ],
)
def test_a_config_with_unsupported_settings_is_not_tuned(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="m cannot be tuned here"):
        around({**RUNNING, **more})


def test_the_goal_sets_the_load_and_ranks_configs_that_miss_it_last() -> None:
    goal = request(50)
    fast, slow = point(200, 60), point(100, 20, level=1)
    assert goal.best([fast, slow]) is slow
    assert goal.rank([slow]) > goal.rank([fast]) > goal.rank([point(900, 70)])
    assert goal.rank([point(200, 10)]) > goal.rank([slow])


def compared(ours: Point, theirs: Point, keeps: bool = True, only_ours: bool = False) -> FinalComparison:
    return FinalComparison(ours, theirs, stats.rate_ratio(ours, theirs), keeps, only_ours)


def worded(verdict: Any, final: FinalComparison, best: str = "two") -> str:
    return sentence(request(50), verdict, Trial(best, {}), Trial(PRESENT, RUNNING), final)


def test_the_sentence_names_both_configs_and_compares_their_figures() -> None:
    message = worded("better", compared(point(200, 10, "two", usage=Usage(0.1, 1.95)), point()))
    assert message.startswith("“two” has 2.00 (1.9")
    assert "the present config, “1 instance on the CPU; batches of up to 16 rows; no dynamic" in message
    assert "200 rows/s and a p95 of 10 ms at c=8, in batches of 1.0 rows, 1.9 cores busy, instead" in message
    assert message.endswith("1.0 cores busy.")


@pytest.mark.parametrize(("rate", "why"), [(101, "that may be noise."), (80, "that is worse.")])
def test_a_config_that_does_not_beat_the_current_one_is_not_recommended(rate: float, why: str) -> None:
    lost = compared(point(rate, 10, "other"), point())
    assert not lost.won
    message = worded("no better", lost, "other")
    assert message.startswith("The present config, “1 instance on the CPU; ")
    assert "stays: “other” has " in message
    assert message.endswith(why)


def test_equal_turns_have_an_interval_as_wide_as_counting_whole_requests_allows() -> None:
    windows = (Window(20, 10), Window(20, 10), Window(20, 10))
    ours, theirs = point(windows=windows, requests=60), point(windows=windows, requests=60)
    final = compared(ours, theirs)
    assert (final.gain.low or 1) < 0.95 < 1.05 < (final.gain.high or 1)
    assert f"{final.gain:.2f}" == "1.00 (0.94–1.07)"
    assert f"{final.gain:.0f}" == "1", "rounded, the interval has no width"


def test_keeping_the_goal_decides_before_the_gain() -> None:
    assert not compared(point(200, 90, "other"), point(), keeps=False).won
    assert compared(point(90, 10, "other"), point(100, 99), only_ours=True).won


def tuning(verdict: Any, **more: Any) -> Tuning:
    ours = point(200, 10, "other")
    trials = (
        Trial(PRESENT, RUNNING, (point(),)),
        Trial("other", changed(RUNNING, batching(2, 1, 100)), (ours,)),
        Trial("broken", RUNNING, refused="it would not load"),
    )
    goal = request(50)
    bench = Bench("t", "gourmet tune m", "2026-01-01T00:00:00+00:00", {}, "rows", (ours, point()))
    final = compared(ours, point())
    return Tuning(goal, ("a few",), trials, "other", final, verdict, "Because " * 40, bench, **more)


def test_the_config_that_is_written_is_one_that_another_triton_reads() -> None:
    text = tuning("better").pbtxt()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert config.instance_group[0].count == 2
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert config.parameters["intra_op_thread_count"].string_value == "1"
    # What our own server filled in would keep NVIDIA's from finding its backend.
    assert (config.runtime, config.platform, config.instance_group[0].name) == ("", "", "")
    assert max(len(line) for line in text.splitlines()) < 120


def test_the_present_config_is_recommended_unless_another_one_is_better() -> None:
    names = {verdict: tuning(verdict).recommended for verdict in ("better", "no better", "undecided")}
    assert [trial and trial.name for trial in names.values()] == ["other", PRESENT, PRESENT]
    assert tuning("out of reach").recommended is None
    present = text_format.Parse(tuning("no better").pbtxt(), model_config_pb2.ModelConfig())
    assert (present.instance_group[0].count, present.instance_group[0].name) == (1, "")
    assert request(50).keeps(point(p95=50))


def test_the_chart_has_every_config_and_names_the_best_and_the_present_one(tmp_path: Path) -> None:
    assert tuning("better").save(tmp_path) == tmp_path
    chart = (tmp_path / "chart.svg").read_text()
    assert ElementTree.fromstring(chart).tag.endswith("svg")
    for words in ("other c=8: p95 10.0 ms", "present c=8: p95 10.0 ms", ">the best<", ">the present config<"):
        assert words in chart
    saved = json.loads((tmp_path / "tune.json").read_text())
    assert (saved["duel"]["ours"]["arm"], saved["recommended"]) == ("other", "other")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--p95", "soon"], "is not a time: write it like"),
        (["--p95", "0"], "no config can reach a goal of 0"),
        (["--delays", "1ms,x"], "is not a time"),
        (["--instances", "2,0"], "each number must be at least 1"),
    ],
)
def test_a_goal_that_makes_no_sense_is_refused(arguments: list[str], says: str) -> None:
    assert says in said("tune", "m", *arguments, status=2)


# Changes of a config
def config(**more: Any) -> dict[str, Any]:
    return {
        "name": "soup",
        "max_batch_size": 16,
        "instance_group": [{"name": "soup_0", "kind": "KIND_CPU", "count": 2}],
        **more,
    }


def test_a_change_leaves_the_rest_and_the_original_alone() -> None:
    before = config(parameters={"system": {"string_value": "food11"}})
    after = changed(before, Change(instances=4))
    assert before["instance_group"][0]["count"] == 2
    assert after["instance_group"][0]["count"] == 4
    assert after["parameters"]["system"] == before["parameters"]["system"]
    assert "dynamic_batching" not in after
    batching = config(dynamic_batching={"max_queue_delay_microseconds": 5})
    assert "dynamic_batching" not in changed(batching, Change(dynamic_batching=False))
    assert "default_queue_policy" not in changed(QUEUED, Change(instances=1))["dynamic_batching"]
    assert "default_queue_policy" in QUEUED["dynamic_batching"]


def test_each_number_of_instances_has_a_parameter_of_its_own_so_that_triton_makes_all_anew() -> None:
    layouts = [changed(RUNNING, Change(instances=count))["parameters"]["instance_layout"] for count in (1, 2)]
    assert layouts[0] != layouts[1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            Change(instances=1, delay_us=100),
            "1 instance on the CPU; batches of up to 16 rows; dynamic batching, ",
        ),
        (Change(threads=1), "2 instances on the CPU, 1 thread each; batches of up to 16 rows; no dynamic"),
        (Change(gpus=(0, 1)), "2 instances on GPU 0, 1; batches of up to 16 rows; no dynamic batching"),
        (Change(max_batch=8, preferred_batches=(4, 8)), "batching without waiting, preferably 4 or 8"),
        (VARIANTS["four-instances"], "4 instances on the CPU; batches of up to 16 rows; no dynamic batching"),
    ],
)
def test_the_summary_names_the_change(change: Change, says: str) -> None:
    assert says in summary(changed(config(), change))
    assert summary({**config(), "max_batch_size": 0}).endswith("on the CPU; no batches")


def test_a_queue_policy_is_left_alone_but_goes_with_the_second_instance() -> None:
    policy = {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 7}}}
    for change in (Change(delay_us=1), Change(instances=2)):
        assert changed(config(**policy), change)["dynamic_batching"]["default_queue_policy"]
    batching = changed(config(**policy), VARIANTS["dynamic-batching"])["dynamic_batching"]
    assert batching.keys() == {"max_queue_delay_microseconds"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Change(cpu=True, gpus=(0,)), "--cpu or --gpus"),
        (lambda: Change(dynamic_batching=False, delay_us=5), "omit --no-dynamic"),
        (
            lambda: changed(config(), Change(preferred_batches=(4, 32))),
            "preferred batch 32 is above max_batch",
        ),
        (lambda: changed(config(max_batch_size=0), Change(delay_us=1)), "soup has max_batch_size 0"),
    ],
)
def test_a_contradiction_is_named(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_field_of_a_newer_server_is_named_where_it_is_left_out() -> None:
    assert as_pbtxt(config(of_tomorrow={"x": 1}, empty={})).startswith("# Left out, as this tritonclient")
    assert "Left out" not in as_pbtxt(config(empty={}))


def test_names_and_texts_of_files_are_quoted() -> None:
    hostile = 'a" } max_batch_size: 99 # \\\n'
    tensors = (tensor(hostile, "FP32", [1]), tensor("y", "FP32", [1]))
    described = model_config("soup", "b", 0, *tensors, instances=1, parameters={"labels": hostile})
    parsed = parse(as_pbtxt(described))
    assert (parsed.input[0].name, parsed.max_batch_size) == (hostile, 0)
    assert parsed.parameters["labels"].string_value == hostile


def test_a_file_with_comments_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "config.pbtxt"
    mine.write_text("# mine\n")
    output = said("config", "soup", "--url", "127.0.0.1:9", "--write", mine, status=2)
    assert "would replace a file with comments" in output
    assert mine.read_text() == "# mine\n"
