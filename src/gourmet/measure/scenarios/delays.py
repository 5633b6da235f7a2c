"""Queue delays: on a model in turn, and with instance counts on one that cannot batch and one that can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gourmet.measure.comparison import (
    NOISE,
    Found,
    NotMeasured,
    above,
    all_of,
    below,
    more,
    over,
    times_the_throughput,
)
from gourmet.measure.results import Point
from gourmet.measure.scenario import Arm, Claims, Points, Scenario, in_flight
from gourmet.repository.config_change import Change

_COUNTS: Final = (24, 12, 4, 5)
_DELAYS_US: Final = (100, 500, 1000, 2000, 4000)
_LEVEL: Final = 16
_ALONE_US: Final = (0, 200, 2000, 5000)
_ALONE_LEVELS: Final = (2, 8)

_ABOUT_ALONE: Final = (
    "How long may a request wait for more requests? Two instances, dynamic batching, and the delay alone "
    "changes. Clients that ask again as soon as they are answered send no more for being kept waiting."
)
# Two arms with the same config may differ by this much from one turn to the next.
_NOISE: Final = 0.10


def queue_delay(name: str, model: str) -> Scenario:
    loads = in_flight(model, *_ALONE_LEVELS)
    arms = tuple(
        Arm(arm_name(us), Change(instances=2, dynamic_batching=True, delay_us=us), loads) for us in _ALONE_US
    )
    claims: Claims = {}
    for level in _ALONE_LEVELS:
        claims |= batches_and_waits(arms, level, f"{model} at c={level}")
    return Scenario(name, f"The queue-delay lab on {model}", _ABOUT_ALONE, arms, claims)


def instances_and_delays(name: str, title: str, lone: str, batched: str) -> Scenario:
    """`lone` takes one row a request, `batched` has a batch dimension."""
    first, second = (
        tuple(
            Arm(f"{model} {arm_name(us)}", Change(instances=2), in_flight(model, _LEVEL), delay_us=us)
            for us in _DELAYS_US
        )
        for model in (lone, batched)
    )
    about = (
        f"{title}: instance counts on {lone}, then queue delays on it, which takes one image a request "
        f"and can batch nothing, and on {batched}, which can. Sixteen clients ask again as soon as they are "
        "answered."
    )
    counts = tuple(Arm(_count(count), Change(instances=count), in_flight(lone, _LEVEL)) for count in _COUNTS)
    claims: Claims = {
        "with more instances than cores, a few do as well as many": _few_do,
        f"delays change nothing on {lone}, which cannot batch (max_batch_size 0)": partial(only_noise, first),
        **batches_and_waits(second, _LEVEL, f"{batched} at c={_LEVEL}"),
    }
    return Scenario(name, title, about, (*counts, *first, *second), claims)


def _few_do(points: Points) -> Found:
    found = [points.get(_count(count), _LEVEL) for count in _COUNTS]
    most, few = found[0], found[2]
    gained = times_the_throughput(few, most)
    figures = over(found, lambda p: f"{p.rows_per_s.value:.0f} rows/s", lambda p: p.arm)
    return above(gained, 1 - NOISE), f"{figures}; {few.arm} {gained:.2f} times {most.arm}"


def _count(count: int) -> str:
    return f"{count} instances"


def arm_name(delay_us: int) -> str:
    return f"delay {delay_us} µs"


def only_noise(arms: Sequence[Arm], points: Points) -> Found:
    """Where nothing can be batched, the delays must make no difference."""
    first, *_, last = found = _several(arms, _LEVEL, points)
    longest = times_the_throughput(last, first)
    rows = max(point.executed_rows for point in found)
    figures = (
        f"{rows:.2f} rows per batch at most, {longest:.2f} times the throughput with {_delay(last)} "
        f"instead of {_delay(first)}; the dynamic batcher sends a lone row on at once"
    )
    return all_of(rows <= 1.0, above(longest, 1 - _NOISE), below(longest, 1 + _NOISE)), figures


def batches_and_waits(arms: Sequence[Arm], level: float, at: str) -> Claims:
    """Where rows can be batched: does waiting fill the batches, and what does it cost?"""

    def grows(figure: Callable[[Point], float], unit: str, factor: float, points: Points) -> Found:
        first, *_, last = found = _several(arms, level, points)
        figures = over(found, lambda point: f"{figure(point):.2f} {unit}", _delay)
        return figure(last) > factor * figure(first), figures

    def pays(points: Points) -> Found:
        first, *longer = _several(arms, level, points)
        best = max(longer, key=lambda point: point.rows_per_s.value)
        gained, figures = more(best, first)
        return gained, f"at best {figures}, with {_delay(best)} instead of {_delay(first)}"

    return {
        f"{at}: a longer delay is time in the queue": partial(grows, lambda p: p.split_ms.queue, "ms", 1.0),
        f"{at}: a longer delay fills the batches": partial(grows, lambda p: p.executed_rows, "rows", 1.2),
        f"{at}: a longer delay brings more throughput": pays,
    }


def _several(arms: Sequence[Arm], level: float, points: Points) -> Sequence[Point]:
    found = points.of([arm.name for arm in arms], level)
    if len(found) < 2:
        raise NotMeasured
    return found


def _delay(point: Point) -> str:
    return point.arm.rpartition("delay ")[2]
