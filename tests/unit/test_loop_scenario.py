"""The scenario of loops: its settings, and what it says of them."""

from __future__ import annotations

from support.points import STEADY, TWICE, a_point

from gourmet.measure import scenarios
from gourmet.measure.results import Point
from gourmet.measure.scenario import Points
from gourmet.measure.scenarios import loops


def test_it_has_the_project_s_settings_and_every_place_of_the_loop() -> None:
    chosen = scenarios.load("translator")
    steps = [arm for arm in chosen.arms if arm.name.startswith("a step")]
    assert [arm.delay_us for arm in steps] == [None, 0, 200, 2000, 5000, 2000]
    assert all([load.level for load in arm.loads] == [1, 2, 3, 4, 5, 6, 7] for arm in steps)
    assert [arm.change.instances for arm in steps if arm.change] == [None] * 5 + [2]
    assert len({arm.asks for arm in chosen.arms}) == 5


def some(arm: str, rates: tuple[float, ...], levels: tuple[int, ...] = (1, 4)) -> list[Point]:
    return [a_point(arm, rates, level) for level in levels]


def all_steps(*, slower: float = 1.0) -> list[Point]:
    later = tuple(rate * slower for rate in STEADY)
    delayed = [point for us in (0, 200, 2000, 5000) for point in some(f"a step, delay {us} µs", later)]
    return [*some(loops.PLAIN, STEADY), *delayed, *some(loops.TWO, later)]


def test_what_waiting_costs_is_said_of_the_best_of_each() -> None:
    pays_not, costs, second = scenarios.load("translator").read(Points(all_steps(slower=0.7)))
    assert pays_not.seen is True
    assert "at best 100/s (a step, no dynamic batching c=1)" in pays_not.says
    assert costs.seen is False, "all delays cost the same here, so that a longer one costs no more"
    assert second.seen is True


def test_a_gain_by_batching_is_said_too() -> None:
    points = [*all_steps(), *some("a step, delay 200 µs", TWICE, (7,))]
    assert scenarios.load("translator").read(Points(points))[0].seen is False


def test_sentences_are_compared_turn_by_turn() -> None:
    turns = []
    for rate in (10.0, 20.0):
        turns += some(loops.LOOP, (rate,), (1, 8))
        turns += some(loops.INSIDE, (8 * rate,), (1, 8))
    told = {goal.what: goal for goal in scenarios.load("translator").goals(Points(turns))}
    assert told["loop in process ÷ loop in the client, c=1"].per_turn == (8.0, 8.0)
    assert told["loop in process ÷ loop in the client, c=8"].met is False
    assert len(told) == 2, "without a measurement of BLS there is nothing to hold against it"
