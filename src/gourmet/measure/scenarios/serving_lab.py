"""The serving lab from one instance to ONNX scaled, what one GPU carries, and how long a request may wait."""

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
    times_the_latency,
    times_the_throughput,
)
from gourmet.measure.results import Point
from gourmet.measure.scenario import Arm, Claims, Points, Scenario, in_flight
from gourmet.repository.config_change import AS_IN_LABS, Change
from gourmet.runtime.instances import available_cpus

ONE: Final = "one instance"
BATCHES: Final = "client batches"
DYNAMIC: Final = "dynamic batching"
TWO: Final = "two instances"
FOUR: Final = "four instances"
ONNX: Final = "ONNX"
SCALED: Final = "ONNX scaled"

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


def scenario(name: str, title: str, python: str, onnx: str) -> Scenario:
    """`python` and `onnx` serve the same weights, by torch in the Python backend and by ONNX Runtime's."""
    # One thread each, so that what an instance adds is not what it takes from the others' threads.
    alone, two, four = (Change(instances=count, threads=1) for count in (1, 2, 4))
    batching = Change(dynamic_batching=True, delay_us=100)
    arms = (
        Arm(ONE, alone, in_flight(python, 1, 8, 16)),
        Arm(BATCHES, alone, (*in_flight(python, 1, batch=4), *in_flight(python, 1, batch=16))),
        Arm(DYNAMIC, batching.over(alone), in_flight(python, 8, 16)),
        Arm(TWO, two, in_flight(python, 8, 16)),
        Arm(FOUR, four, in_flight(python, 8, 16)),
        Arm(ONNX, alone, in_flight(onnx, 1, 8, 16)),
        Arm(SCALED, batching.over(two), in_flight(onnx, 8, 16)),
    )
    about = (
        f"{title} on this machine: the same examples answered by the Python model and by its ONNX export, "
        "while the config changes on the running server. An instance has one thread; every client asks "
        "again as soon as it is answered."
    )
    claims: Claims = {
        "with one instance, the queue's share of the latency grows with concurrency": _queue_grows,
        "more clients bring one instance hardly more throughput, only latency": _one_instance_is_full,
        "rows sent together cost less each": lambda them: more(them.get(BATCHES, 1, 16), them.get(ONE, 1)),
        "dynamic batching merges waiting requests, and one instance answers more for it": _batches_form,
        f"instances help up to the number of cores, here {available_cpus()}": _instances_help,
        "the same weights as ONNX answer more than the Python model": _more(ONNX, ONE),
        "two ONNX instances answer more than one": _more(SCALED, ONNX),
    }
    return Scenario(name, title, about, arms, claims, {python: AS_IN_LABS})


def _more(ours: str, theirs: str) -> Callable[[Points], Found]:
    return lambda points: more(points.get(ours, 8), points.get(theirs, 8))


def _queue_grows(points: Points) -> Found:
    measured = [points.get(ONE, level) for level in (1, 8, 16)]
    shares = [point.split_ms.queue / point.latency_ms.mean for point in measured]
    figures = over(measured, lambda p: f"{p.split_ms.queue / p.latency_ms.mean:.0%}", lambda p: p.load.at)
    return shares[0] < shares[1] < shares[2] and shares[2] > 0.5, figures


def _one_instance_is_full(points: Points) -> Found:
    few, many = points.get(ONE, 1), points.get(ONE, 16)
    gained, waited = times_the_throughput(many, few), times_the_latency(many, few)
    figures = f"{gained:.2f} times the throughput and {waited:.1f} times the latency from c=1 to c=16"
    return all_of(below(gained, 1.5), above(waited, 4)), figures


def _batches_form(points: Points) -> Found:
    batching = points.get(DYNAMIC, 8)
    gained, figures, ratio = more(batching, points.get(ONE, 8))
    rows = batching.executed_rows
    return all_of(rows > 1.5, gained), f"{rows:.1f} rows per batch, {figures}", ratio


def _instances_help(points: Points) -> Found:
    one, two, four = (points.get(arm, 8) for arm in (ONE, TWO, FOUR))
    second, third = times_the_throughput(two, one), times_the_throughput(four, two)
    # Doubling the instances is to add a quarter at least while there are cores for them.
    helps = (
        above(gain, 1.25) if available_cpus() >= count else below(gain, 1.25)
        for gain, count in ((second, 2), (third, 4))
    )
    return all_of(*helps), f"2 instances {second:.2f} times 1, 4 instances {third:.2f} times 2, at c=8"


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
    measured = [points.get(_count(count), _LEVEL) for count in _COUNTS]
    many, few = measured[0], measured[2]
    gained = times_the_throughput(few, many)
    figures = over(measured, lambda p: f"{p.rows_per_s.value:.0f} rows/s", lambda p: p.arm)
    return above(gained, 1 - NOISE), f"{figures}; {few.arm} {gained:.2f} times {many.arm}", gained


def _count(count: int) -> str:
    return f"{count} instances"


def arm_name(delay_us: int) -> str:
    return f"delay {delay_us} µs"


def only_noise(arms: Sequence[Arm], points: Points) -> Found:
    """Check that delays make no difference where nothing can be batched."""
    first, *_, last = measured = _several(arms, _LEVEL, points)
    longest = times_the_throughput(last, first)
    rows = max(point.executed_rows for point in measured)
    figures = (
        f"{rows:.2f} rows per batch at most, {longest:.2f} times the throughput with {_delay(last)} "
        f"instead of {_delay(first)}; the dynamic batcher sends a lone row on at once"
    )
    return all_of(rows <= 1.0, above(longest, 1 - _NOISE), below(longest, 1 + _NOISE)), figures, longest


def batches_and_waits(arms: Sequence[Arm], level: float, at: str) -> Claims:
    """Say whether waiting fills the batches, and what it costs, where rows can be batched."""

    def grows(figure: Callable[[Point], float], unit: str, factor: float, points: Points) -> Found:
        first, *_, last = measured = _several(arms, level, points)
        figures = over(measured, lambda point: f"{figure(point):.2f} {unit}", _delay)
        return figure(last) > factor * figure(first), figures

    def pays(points: Points) -> Found:
        first, *longer = _several(arms, level, points)
        best = max(longer, key=lambda point: point.rows_per_s.value)
        gained, figures, ratio = more(best, first)
        return gained, f"at best {figures}, with {_delay(best)} instead of {_delay(first)}", ratio

    def costs(points: Points) -> Found:
        first, *_, last = _several(arms, level, points)
        _, figures, ratio = more(last, first)
        return below(ratio, 1 - _NOISE), f"{figures}, with {_delay(last)} instead of {_delay(first)}", ratio

    return {
        f"{at}: a longer delay is time in the queue": partial(grows, lambda p: p.split_ms.queue, "ms", 1.0),
        f"{at}: a longer delay fills the batches": partial(grows, lambda p: p.executed_rows, "rows", 1.2),
        f"{at}: the longest delay costs throughput": costs,
        f"{at}: a longer delay brings more throughput": pays,
    }


def _several(arms: Sequence[Arm], level: float, points: Points) -> Sequence[Point]:
    measured = points.of([arm.name for arm in arms], level)
    if len(measured) < 2:
        raise NotMeasured
    return measured


def _delay(point: Point) -> str:
    return point.arm.rpartition("delay ")[2]
