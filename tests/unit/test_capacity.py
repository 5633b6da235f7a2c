"""What `gourmet capacity` makes of figures: the queue against known formulas, and what a rate takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.points import a_point

from gourmet.cli import main
from gourmet.errors import GourmetError
from gourmet.measure import capacity, queueing, results, storage
from gourmet.measure.capacity import CapacityGoal, cost_of, plan
from gourmet.measure.queueing import Servers, highest_rate, latencies_ms, p50_and_p99_ms, poisson
from gourmet.measure.results import Bench, Latency, LoadSpec, Point, Usage

ALWAYS_10 = Latency(10.0, 10.0, 10.0, 10.0, 10.0)
CONFIG = {"name": "m", "max_batch_size": 8, "instance_group": [{"count": 2}]}


def measured(level: float, rate: float, took: Latency, **more: Any) -> Point:
    given: dict[str, Any] = {"usage": Usage(0.2, 1.2, 600.0, 0.6, 100.0), "transferred": 50_000.0} | more
    load = LoadSpec("m", level, through="app")
    return replace(a_point(rates=(rate, rate, rate)), load=load, latency_ms=took, config=CONFIG, **given)


def a_run(*points: Point) -> Bench:
    alone = measured(1, 100, Latency(10.0, 9.5, 11.0, 12.0, 15.0))
    found = points or (alone, measured(4, 200, Latency(20.0, 20.0, 21.0, 22.0, 25.0)))
    return Bench("t", "c", "2026-11-25T12:00:00", {"cpus": "2 of 2"}, "32 photos", found)


@pytest.mark.parametrize("busy", [0.3, 0.7, 0.9])
def test_requests_wait_as_long_as_the_formula_of_one_constant_server_says(busy: float) -> None:
    servers = Servers(1, ALWAYS_10, 100)
    seen = latencies_ms(servers, poisson(100 * busy, 200_000)).mean()
    assert seen == pytest.approx(10 + 10 * busy / (2 * (1 - busy)), rel=0.06)


def test_more_servers_at_the_same_share_of_their_rate_let_nobody_wait_longer() -> None:
    """Erlang: with times that vary much, eight at 0.8 have a seventh of the waiting of one."""
    spread = Latency(10.0, 6.9, 23.0, 30.0, 46.0)
    one, eight = Servers(1, spread, 100), Servers(1, spread, 100).times(8)
    assert (eight.count, eight.rate_per_s) == (8, 800)
    waits = [float(latencies_ms(each, poisson(0.8 * each.rate_per_s)).mean()) - 10 for each in (one, eight)]
    assert 0 < waits[1] < waits[0] / 4


def test_what_is_drawn_has_the_percentiles_and_the_mean_that_were_measured() -> None:
    took = Latency(10.0, 9.5, 11.0, 12.0, 15.0)
    drawn = Servers(2, took, 200).drawn_ms(np.linspace(0, 1, 100_001))
    assert np.percentile(drawn, [50, 90, 95, 99]) == pytest.approx([9.5, 11, 12, 15], rel=1e-3)
    assert drawn.mean() == pytest.approx(10.0, rel=0.01)


def test_what_holds_no_server_delays_nobody_else() -> None:
    """An answer takes 10 ms, of which a server has 5: at 150 a second it is busy for three quarters."""
    seen = latencies_ms(Servers(1, ALWAYS_10, 200), poisson(150, 100_000))
    assert seen.min() == pytest.approx(10)
    assert seen.mean() == pytest.approx(10 + 5 * 0.75 / (2 * 0.25), rel=0.06)


def test_servers_that_disturb_each_other_are_slower_together_and_as_measured_when_all_are_busy() -> None:
    servers = Servers(4, ALWAYS_10, 200)  # 20 ms each with four at work
    assert latencies_ms(servers, np.array([0.0, 1.0, 2.0])) == pytest.approx(10)
    at_once = latencies_ms(servers, np.zeros(400))
    assert 1000 * 400 / at_once.max() == pytest.approx(200, rel=0.03)


def test_beyond_what_servers_answer_the_queue_grows_for_as_long_as_it_lasts() -> None:
    seen = latencies_ms(Servers(2, ALWAYS_10, 200), poisson(400, 2_000))
    assert seen[-1] == pytest.approx(1000 * (2_000 / 200 - 2_000 / 400), rel=0.05)


def test_the_highest_rate_is_just_within_the_goal() -> None:
    servers = Servers(2, Latency(10.0, 9.5, 11.0, 12.0, 15.0), 200)
    rate = highest_rate(servers, 40)
    assert rate is not None
    assert p50_and_p99_ms(servers, rate)[1] <= 40 < p50_and_p99_ms(servers, 1.03 * rate)[1]
    assert highest_rate(servers, 14) is None


def test_a_request_costs_what_the_processes_spent_while_all_were_busy() -> None:
    cost = cost_of(a_run())
    assert (cost.cpus, cost.servers.count, cost.servers.rate_per_s) == (2, 2, pytest.approx(200))
    assert (cost.triton_cpu_ms, cost.app_cpu_ms) == (pytest.approx(6), pytest.approx(3))
    assert (cost.memory_mib, cost.transferred) == (700, 50_000)
    assert "9.00 ms of CPU (Triton 6.00, the web app 3.00)" in str(cost)


def test_rows_of_a_loop_are_worked_on_together() -> None:
    assert capacity.at_a_time({"instance_group": [{"count": 2}]}) == 2
    together = {"parameters": {"rows_at_once": {"string_value": "16"}}, "instance_group": [{"count": 2}]}
    assert [load.level for load in capacity.loads(together | {"name": "m"}, "triton")] == [1, 64]


def test_nodes_and_money_follow_from_the_rate_and_the_bottleneck_moves() -> None:
    made = plan(cost_of(a_run()), CapacityGoal(200.0, cores=8, price=0.1))
    few, many, most = made.rows
    assert made.node.rate_per_s == pytest.approx(800)
    assert 600 < made.node_rate < 800
    assert (few.nodes, few.cores, few.runs_out_first) == (1, 8, "nothing: one node is enough")
    assert many.nodes == 2
    assert "Triton's cores (67% of the CPU time)" in many.runs_out_first
    assert (most.gigabits, most.runs_out_first) == (
        pytest.approx(40),
        "network: 4.0 addresses of 10 Gbit/s",
    )
    assert most.nodes == -(-100_000 // made.node_rate)
    assert most.price_an_hour == pytest.approx(most.nodes * 8 * 0.1)
    assert most.price_a_million == pytest.approx(most.price_an_hour / 360)
    assert all(row.p99_ms <= 200 for row in made.rows)
    wide = plan(cost_of(a_run()), CapacityGoal(200.0, (100_000.0,), gigabits=100))
    assert wide.rows[0].runs_out_first == "object store, where inputs come from one: 18 prefixes"
    tight = plan(cost_of(a_run()), CapacityGoal(16.0, (10_000.0,), reads=1e6))
    assert tight.rows[0].runs_out_first.startswith("the queue, at ")


def test_a_goal_below_what_a_request_takes_alone_is_refused_in_a_sentence() -> None:
    with pytest.raises(GourmetError, match=r"out of reach on any number of nodes: .* have 15\.0 ms"):
        plan(cost_of(a_run()), CapacityGoal(12.0))


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([measured(8, 200, ALWAYS_10)], "a request at a time and many"),
        ([measured(1, 100, ALWAYS_10), measured(4, 200, ALWAYS_10, usage=Usage(0.1))], "on this machine"),
        ([measured(1, 100, ALWAYS_10), measured(4, 200, ALWAYS_10, transferred=0.0)], "--client gourmet"),
    ],
)
def test_a_run_that_does_not_say_what_a_request_costs_is_refused(points: list[Point], says: str) -> None:
    with pytest.raises(GourmetError, match=says):
        cost_of(a_run(*points))


def test_a_saved_run_is_planned_with_and_the_page_can_be_planned_with_again(tmp_path: Path) -> None:
    saved = storage.save(a_run(), tmp_path / "bench")
    arguments = ["capacity", "--rate", "1000", "--price", "0.04", "--json"]
    first = CliRunner().invoke(main, [*arguments, "--from", str(saved), "--save", str(tmp_path / "first")])
    assert first.exit_code == 0, first.output
    told = json.loads(first.output)
    assert "quieter machine" not in first.output  # 90 % were busy
    assert [row["rate"] for row in told["rows"]] == [10, 1000, 100_000]
    page = (tmp_path / "first" / "index.html").read_text()
    assert "what one node more costs" in page
    assert "<svg" in page
    again = CliRunner().invoke(
        main, [*arguments, "--from", str(tmp_path / "first"), "--save", str(tmp_path / "2")]
    )
    assert json.loads(again.output) == told
    assert results.read(tmp_path / "first" / "bench.json") == a_run()


def test_a_machine_that_others_used_too_is_said(tmp_path: Path) -> None:
    idle = measured(4, 200, Latency(20.0, 20.0, 21.0, 22.0, 25.0), usage=Usage(0.1, 0.8, 600.0, 0.4, 100.0))
    saved = storage.save(a_run(measured(1, 100, ALWAYS_10), idle), tmp_path / "bench")
    ran = CliRunner().invoke(main, ["capacity", "--from", str(saved), "--save", str(tmp_path / "plan")])
    assert "60% of the cores were at work" in ran.output


def test_the_seed_is_fixed_so_that_a_plan_is_the_same_twice() -> None:
    assert queueing.p50_and_p99_ms(Servers(2, ALWAYS_10, 200), 150) == queueing.p50_and_p99_ms(
        Servers(2, ALWAYS_10, 200), 150
    )
