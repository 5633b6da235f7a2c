"""Compare generation loops in the client, in business logic scripting, and in the served process.

The tables of a known student project, whose client pulls a translation out of the server word by word, under
its own settings; then the same sentences through models that turn the loop inside Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from gourmet import repository
from gourmet.contracts import Array
from gourmet.measure.comparison import (
    NOISE,
    Found,
    NotMeasured,
    all_of,
    below,
    goals_by_turn,
    over,
    times_the_throughput,
)
from gourmet.measure.results import LoadSpec, Point, Requirement
from gourmet.measure.scenario import Arm, Points, Scenario, in_flight, own_server
from gourmet.measure.task import Workload
from gourmet.measure.validity import WrongAnswers
from gourmet.repository.config_change import Change
from gourmet.systems import registry

PLAIN: Final = "a step, no dynamic batching"
TWO: Final = "a step, delay 2000 µs, two instances"
LOOP: Final = "loop in the client"
BLS: Final = "loop in BLS"
INSIDE: Final = "loop in process"
STREAMED: Final = "loop in process, streamed"

_DELAYS_US: Final = (0, 200, 2000, 5000)
_LEVELS: Final = (1, 2, 3, 4, 5, 6, 7)
_MAX_BATCH: Final = 4
_FEW: Final = 1
_MANY: Final = 8
# Eight bits round otherwise in each graph; answers that differ more often are another network's.
_LEAST_AGREEMENT: Final = 0.9

_ABOUT: Final = (
    "First what a client that turns the loop itself gets of the model of whole steps: steps a second, under "
    "the settings of a known student project (at most four rows a batch). Then whole sentences a second, by "
    "the same client's loop, by business logic scripting over the encoder and a step with its cache, and in "
    "the one process of {inside}. Every client asks again as soon as it is answered."
)


def scenario(
    name: str,
    title: str,
    system: str,
    step: str,
    bls: str,
    parts: Sequence[str],
    inside: str,
    streamed: str,
) -> Scenario:
    """`step` is what a client asks; the others take the examples of `system`, and `bls` asks `parts`."""
    alone, batching = Change(max_batch=_MAX_BATCH), Change(max_batch=_MAX_BATCH, dynamic_batching=True)
    levels = in_flight(step, *_LEVELS)
    arms = (
        Arm(PLAIN, alone, levels, stepped=system),
        *(Arm(_delayed(us), alone, levels, delay_us=us, stepped=system) for us in _DELAYS_US),
        Arm(TWO, Change(instances=2).over(batching), levels, delay_us=2000, stepped=system),
        Arm(LOOP, alone, in_flight(step, _FEW, _MANY, through="loop"), stepped=system),
        Arm(BLS, None, in_flight(bls, _FEW, _MANY)),
        Arm(INSIDE, None, in_flight(inside, _FEW, _MANY)),
        Arm(STREAMED, None, in_flight(streamed, _FEW, _MANY)),
    )
    return Scenario(
        name,
        title,
        _ABOUT.format(inside=inside),
        arms,
        claims={
            "dynamic batching brings a loop in the client no more steps": _batching_pays_not,
            "the longer the delay, the fewer steps a client alone gets": _delays_cost,
            "a second instance brings no more steps": _second_pays_not,
        },
        goals=_goals,
        check=partial(answers_agree, system),
        server=lambda: own_server((repository.DEFAULT,), (step, bls, *parts, inside, streamed)),
    )


def _delayed(us: int) -> str:
    return f"a step, delay {us} µs"


def _best(points: Points, arm: str) -> Point:
    measured = [point for level in _LEVELS for point in points.of([arm], level)]
    if not measured:
        raise NotMeasured
    return max(measured, key=lambda point: point.rows_per_s.value)


def _steps(points: Sequence[Point]) -> str:
    return over(points, lambda p: f"{p.rows_per_s.value:.0f}/s", lambda p: p.name)


def _batching_pays_not(points: Points) -> Found:
    plain, *delayed = (_best(points, arm) for arm in (PLAIN, *map(_delayed, _DELAYS_US)))
    gained = times_the_throughput(max(delayed, key=lambda point: point.rows_per_s.value), plain)
    return below(gained, 1 + NOISE), f"at best {_steps([plain, *delayed])}", gained


def _delays_cost(points: Points) -> Found:
    measured = [points.get(_delayed(us), 1) for us in _DELAYS_US]
    first, *longer = measured
    # Two hundred microseconds are little beside a step.
    fewer = [below(times_the_throughput(point, first), 1 - NOISE) for point in longer[1:]]
    return all_of(*fewer), _steps(measured)


def _second_pays_not(points: Points) -> Found:
    single, double = _best(points, _delayed(2000)), _best(points, TWO)
    gained = times_the_throughput(double, single)
    return below(gained, 1 + NOISE), f"at best {_steps([single, double])}", gained


def _goals(points: Points) -> list[Requirement]:
    def ratio(theirs: str, level: int, wanted: float) -> list[Requirement]:
        rates = [
            [point.rows_per_s.value for point in points.turns(arm, LoadSpec("", level))]
            for arm in (INSIDE, theirs)
        ]
        return goals_by_turn(f"{INSIDE} ÷ {theirs}, c={level}", *rates, wanted=wanted)

    return [*ratio(LOOP, _FEW, 5.0), *ratio(LOOP, _MANY, 10.0), *ratio(BLS, _MANY, 2.0)]


def answers_agree(system: str, workloads: Mapping[str, Workload]) -> str:
    """Return how often all give the same answer; raise if they clearly disagree."""
    texts = {
        asks: [_text(system, answer, workload) for answer in workload.answers.expected]
        for asks, workload in workloads.items()
        if any(values.dtype == np.object_ for values in workload.answers.expected[0].values())
    }
    (first, usual), *others = texts.items()
    shares = []
    for asks, answers in others:
        same = float(np.mean([mine == other for mine, other in zip(usual, answers, strict=True)]))
        if same < _LEAST_AGREEMENT:
            raise WrongAnswers(
                f"{first} and {asks} agree on {same:.0%} of the examples only: "
                "deploy both from the same weights"
            )
        shares.append(f"{asks} to {same:.0%}")
    return f"The answers were checked first: as {first} said the others, {', '.join(shares)} of the examples."


def _text(system: str, answer: Mapping[str, Array], workload: Workload) -> str:
    return registry.generation(system).generated(answer, workload.rows.info).text
