"""Queue delays: on a model in turn, and with instance counts on one that cannot batch and one that can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gourmet.config_change import Change
from gourmet.measure.comparison import (
    NOISE,
    Found,
    NotMeasured,
    above,
    all_of,
    below,
    claim,
    more,
    over,
    times_the_throughput,
)
from gourmet.measure.results import Point, Statement
from gourmet.measure.scenario import Arm, Points, Scenario, loads

_COUNTS: Final = (24, 12, 4, 5)
_DELAYS_US: Final = (100, 500, 1000, 2000, 4000)
_LEVEL: Final = 16
_ALONE_US: Final = (0, 200, 2000, 5000)
_ALONE_LEVELS: Final = (2, 8)

_ABOUT_ALONE: Final = (
    "How long may a request wait for company? Two instances, dynamic batching, and the delay alone changes. "
    "Clients that ask again as soon as they are answered send no more for being kept waiting."
)
# Two arms with the same config may differ by this much from one turn to the next.
_NOISE: Final = 0.10


def queue_delay(name: str, model: str) -> Scenario:
    arms = tuple(
        Arm(
            arm_name(us),
            Change(instances=2, dynamic_batching=True, delay_us=us),
            loads(model, *_ALONE_LEVELS),
        )
        for us in _ALONE_US
    )

    def read(points: Points) -> list[Statement]:
        names = [arm.name for arm in arms]
        return [
            said
            for level in _ALONE_LEVELS
            for said in batches_and_waits(points.of(*names, level=level), f"{model} at c={level}")
        ]

    return Scenario(name, f"The queue-delay lab on {model}", _ABOUT_ALONE, arms, read)


def instances_and_delays(name: str, title: str, lone: str, batched: str) -> Scenario:
    """`lone` takes one row a request, `batched` has a batch dimension."""

    def waits(model: str) -> list[str]:
        return [f"{model} {arm_name(us)}" for us in _DELAYS_US]

    counts = tuple(Arm(_count(count), Change(instances=count), loads(lone, _LEVEL)) for count in _COUNTS)
    delayed = tuple(
        Arm(arm, Change(instances=2), loads(model, _LEVEL), delay_us=us)
        for model in (lone, batched)
        for arm, us in zip(waits(model), _DELAYS_US, strict=True)
    )
    about = (
        f"{title}: instance counts on {lone}, then queue delays on it, which takes one image a request "
        f"and can batch nothing, and on {batched}, which can. Sixteen clients ask again as soon as they are "
        "answered."
    )

    def read(points: Points) -> list[Statement]:
        """What the lab teaches, held against these figures."""
        alone, together = (points.of(*waits(model), level=_LEVEL) for model in (lone, batched))
        few = "with more instances than cores, a few do as well as many"
        return [
            claim(few, lambda: _few_do(points)),
            only_noise(alone, lone),
            *batches_and_waits(together, f"{batched} at c={_LEVEL}"),
        ]

    return Scenario(name, title, about, counts + delayed, read)


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


def only_noise(points: Sequence[Point], model: str) -> Statement:
    """Where nothing can be batched, the delays must make no difference."""

    def look() -> Found:
        first, last = _first_and_last(points)
        longest = times_the_throughput(last, first)
        rows = max(point.executed_rows for point in points)
        figures = (
            f"{rows:.2f} rows per batch at most, {longest:.2f} times the throughput with {_delay(last)} "
            f"instead of {_delay(first)}; the dynamic batcher sends a lone row on at once"
        )
        return all_of(rows <= 1.0, above(longest, 1 - _NOISE), below(longest, 1 + _NOISE)), figures

    return claim(f"delays change nothing on {model}, which cannot batch (max_batch_size 0)", look)


def batches_and_waits(points: Sequence[Point], at: str) -> list[Statement]:
    """Where rows can be batched: does waiting fill the batches, and what does it cost?"""

    def grows(figure: Callable[[Point], float], unit: str, factor: float) -> Found:
        first, last = _first_and_last(points)
        figures = over(points, lambda point: f"{figure(point):.2f} {unit}", _delay)
        return figure(last) > factor * figure(first), figures

    def pays() -> Found:
        first, _ = _first_and_last(points)
        best = max(points[1:], key=lambda point: point.rows_per_s.value)
        gained, figures = more(best, first)
        return gained, f"at best {figures}, with {_delay(best)} instead of {_delay(first)}"

    longer = f"{at}: a longer delay"
    return [
        claim(f"{longer} is time in the queue", lambda: grows(lambda point: point.split_ms.queue, "ms", 1.0)),
        claim(f"{longer} fills the batches", lambda: grows(lambda point: point.executed_rows, "rows", 1.2)),
        claim(f"{longer} brings more throughput", pays),
    ]


def _first_and_last(points: Sequence[Point]) -> tuple[Point, Point]:
    if len(points) < 2:
        raise NotMeasured
    return points[0], points[-1]


def _delay(point: Point) -> str:
    return point.arm.rpartition("delay ")[2]
