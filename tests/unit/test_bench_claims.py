"""Claims of a scenario: seen, not seen or undecided, and no more than its figures support."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.points import STEADY, TWICE, a_point

from gourmet.cli import main
from gourmet.measure import comparison, report, scenario, scenarios, stats, sweep, validity
from gourmet.measure.results import Bench, Estimate, LoadSpec, Point, Rejection, Statement
from gourmet.measure.scenario import Arm
from gourmet.measure.scenarios import serving_lab
from gourmet.measure.without_server import Layout, LayoutResult

WILD = (40.0, 160.0, 320.0)


@pytest.mark.parametrize(
    ("figure", "outcome"),
    [
        (Estimate(1.81, 0.17, 19.81), None),
        (Estimate(1.81, 1.5, 2.2), True),
        (Estimate(0.9, 0.8, 1.04), False),
        (Estimate(1.81), None),
    ],
)
def test_a_claim_is_decided_only_where_the_interval_excludes_the_opposite(
    figure: Estimate, outcome: bool | None
) -> None:
    assert comparison.above(figure, 1.05) is outcome
    assert comparison.below(figure, 1.05) is (None if outcome is None else not outcome)


def test_several_figures_show_a_claim_together() -> None:
    assert comparison.all_of(True, True) is True
    assert comparison.all_of(True, None) is None
    assert comparison.all_of(None, False) is False


def points(**rates: tuple[float, ...]) -> scenario.Points:
    return scenario.Points([a_point(arm, seen) for arm, seen in rates.items()])


@pytest.mark.parametrize(
    ("rates", "seen", "begins"),
    [
        (TWICE, True, "two ONNX instances answer more than one: 200 against 100 rows/s, 2.00 (1.9"),
        (STEADY, False, "Not seen here: two ONNX instances"),
        (WILD, None, "Undecided: two ONNX instances answer more than one; the interval allows both: 173"),
    ],
)
def test_a_gain_has_three_outcomes(rates: tuple[float, ...], seen: bool | None, begins: str) -> None:
    claim = scenarios.load("food").read(points(**{"ONNX": STEADY, "ONNX scaled": rates}))[-1]
    assert (claim.seen, claim.says[: len(begins)]) == (seen, begins)


def test_undecided_allows_both_only_where_the_interval_holds_one() -> None:
    def said(ratio: Estimate) -> str:
        return comparison.claim(
            "it pays", lambda: (comparison.above(ratio, 1.15), f"{ratio:.2f}", ratio)
        ).says

    assert "the interval allows both: 1.00 (0.90–1.20)" in said(Estimate(1.0, 0.9, 1.2))
    assert "allows both" not in said(Estimate(1.11, 1.02, 1.21))
    assert "two runs of the same may differ by as much: 1.11 (1.02–1.21)" in said(Estimate(1.11, 1.02, 1.21))
    assert "a single measurement has no interval: 1.11" in said(Estimate(1.11))


def test_a_window_without_an_answer_leaves_a_ratio_without_an_interval() -> None:
    assert stats.ratio([2.0, 4.0], [0.0, 2.0]) == Estimate(3.0)


def test_the_cost_of_a_long_delay_is_reported() -> None:
    arms, seen_points = of_delays(TWICE, TWICE, STEADY, level=16)
    costs, _ = list(serving_lab.batches_and_waits(arms, 16, "m at c=16").items())[2:]
    result = comparison.claim(costs[0], lambda: costs[1](seen_points))
    assert result.seen
    assert result.says.startswith(
        "m at c=16: the longest delay costs throughput: 100 against 200 rows/s, 0.50 ("
    )


def of_delays(*rates: tuple[float, ...], level: float) -> tuple[list[Arm], scenario.Points]:
    names = [serving_lab.arm_name(us) for us in (0, 200, 2000)]
    arms = [Arm(name, None, ()) for name in names]
    return arms, scenario.Points([a_point(n, seen, level) for n, seen in zip(names, rates, strict=False)])


@pytest.mark.parametrize(
    ("shortest", "longer", "seen"),
    [
        (STEADY, TWICE, True),
        (STEADY, (95.0, 130.0, 90.0), None),
        # All of its interval is above 1, but two runs of the same differ by as much.
        (STEADY, (102.0, 102.5, 101.5), False),
        # The shortest is the best, and is not compared with itself.
        (TWICE, STEADY, False),
    ],
)
def test_a_longer_delay_pays_only_beyond_noise(
    shortest: tuple[float, ...], longer: tuple[float, ...], seen: bool | None
) -> None:
    arms, seen_points = of_delays(shortest, longer, level=8)
    *_, look = serving_lab.batches_and_waits(arms, 8, "m at c=8").values()
    pays = comparison.claim("it pays", lambda: look(seen_points))
    assert pays.seen is seen
    assert pays.says.endswith("times, at c=8, with 200 µs instead of 0 µs.")


@pytest.mark.parametrize(
    ("last", "seen"), [(STEADY, True), (WILD, None), (TWICE, False)], ids=["same", "wild", "twice"]
)
def test_delays_that_change_nothing_are_the_same_within_noise(
    last: tuple[float, ...], seen: bool | None
) -> None:
    assert serving_lab.only_noise(*of_delays(STEADY, last, level=16))[0] is seen


@pytest.mark.parametrize("name", sorted(scenarios.known()))
def test_a_scenario_reads_measured_points_and_reports_missing_ones(name: str) -> None:
    chosen = scenarios.load(name)
    assert chosen.name == name
    measured = [replace(a_point(arm.name, STEADY), load=load) for arm in chosen.arms for load in arm.loads]
    claims = chosen.read(scenario.Points(measured))
    expects_nothing = name == "foundation"
    assert expects_nothing or any(claim.seen is False for claim in claims)
    missing = chosen.read(scenario.Points([]))
    assert {claim.seen for claim in missing} == (set() if expects_nothing else {None})
    assert all(claim.says.startswith("Not measured: ") for claim in missing)
    assert chosen.goals(scenario.Points([])) == []


def raw(single_ms: float, best: float) -> list[LayoutResult]:
    def result(layout: Layout, rate: float) -> LayoutResult:
        return LayoutResult(layout, rate, single_ms, single_ms)

    return [result(Layout(1, 1), 100.0), result(Layout(2, 1), best)]


def test_the_foundation_s_goals_are_taken_turn_by_turn() -> None:
    chosen = scenarios.load("foundation")
    arms = [(arm, load) for arm in chosen.arms for load in arm.loads]
    turns = [
        replace(a_point(arm.name, (rate * (3 if arm.name == "ours" else 1),)), load=load)
        for rate in (90.0, 110.0)
        for arm, load in arms
    ]
    goals = {
        goal.what: goal for goal in chosen.goals(scenario.Points(turns, [raw(9.0, 100.0), raw(9.5, 100.0)]))
    }
    assert goals["best through Triton ÷ best raw"].per_turn == pytest.approx((0.9, 1.1))
    assert goals["ours ÷ reference lab, concurrency 8"].per_turn == pytest.approx((3.0, 3.0))
    inside = goals["one instance, concurrency 1: added inside Triton, mean"]
    assert (inside.per_turn, inside.met) == (pytest.approx((9.3, 8.8)), False)
    assert len(goals) == 5
    # A turn in which a point was rejected has no partner in the other arm.
    lacking = [turn for turn in turns if turn.name != "ours c=8"]
    few = chosen.goals(scenario.Points([*lacking, turns[-1]], [raw(9.0, 100.0), raw(9.5, 100.0)]))
    assert "ours ÷ reference lab, concurrency 8" not in {goal.what for goal in few}


def test_scenarios_are_named_by_systems_and_not_by_the_engine() -> None:
    engine = Path(scenarios.__file__).parent
    for module in engine.glob("*.py"):
        assert not {"food", "digits"} & set(module.read_text().lower().replace("_", " ").split()), module
    assert {
        "food",
        "queue-delay",
        "foundation",
        "digits",
        "translator",
    } == set(scenarios.known())


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    ran = CliRunner().invoke(main, ["bench", "scenario", "flowers"])
    assert (
        ran.exit_code,
        "no scenario 'flowers' found; there are digits, food" in ran.output,
    ) == (2, True)
    ran = CliRunner().invoke(main, ["bench", "scenario", "food", "--model", "digits"])
    assert (ran.exit_code, "drop --model" in ran.output) == (2, True)
    assert scenarios.load("queue-delay", "digits").models == ("digits",)


def test_a_point_that_is_refused_says_that_it_was_too_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    load = LoadSpec("m", 8)

    def unsteady(*_: object) -> Point:
        raise validity.Disturbed("the windows differ")

    monkeypatch.setattr(sweep, "measure", unsteady)
    _, (refused,) = sweep.run(None, [load], None, None)  # type: ignore[arg-type]
    assert str(refused) == "m c=8: Rejected: too noisy (the windows differ)"


def test_the_page_tells_two_runs_apart_and_marks_each_claim() -> None:
    findings = (Statement("it is so", True), Statement("Not seen here: x", False), Statement("Undecided: y"))
    bench = Bench(
        "m, c=1 to 8",
        "gourmet bench run m",
        "2026-11-22T10:04:05+00:00",
        {},
        "<b>noise",
        (a_point("<b>m", STEADY),),
        (Rejection("m c=8", "too noisy (the windows <b>differ)"),),
        findings,
        about="<b>",
    )
    html = report.as_page(bench)
    assert "<title>m, c=1 to 8 · 2026-11-22 10:04</title>" in html
    assert "<li>m c=8: Rejected: too noisy (the windows &lt;b&gt;differ)" in html
    assert "<b>" not in html
    best = r"\S+ rows/s at &lt;b&gt;m c=8, p95 \S+ ms"
    assert re.search(rf"name='description' content='{best} · Rejected: too noisy \(1\) · Points", html)
    assert [finding.mark for finding in findings] == ["✓", "✗", "·"]
    assert report.figures(bench.points)[0][0] == "point"
