"""One instance, client batches, dynamic batching, more instances, ONNX, ONNX scaled."""

from __future__ import annotations

from typing import Final

from gourmet.config_change import Change
from gourmet.measure.claims import (
    above,
    all_of,
    below,
    claim,
    not_measured,
    over,
    times_the_latency,
    times_the_throughput,
)
from gourmet.measure.compare import NOISE
from gourmet.measure.results import LoadSpec, Point, Statement
from gourmet.measure.scenario import Arm, Points, Scenario
from gourmet.runtime.instances import available_cpus

ONE: Final = "one instance"
BATCHES: Final = "client batches"
DYNAMIC: Final = "dynamic batching"
TWO: Final = "two instances"
FOUR: Final = "four instances"
ONNX: Final = "ONNX"
SCALED: Final = "ONNX scaled"


def scenario(name: str, title: str, python: str, onnx: str) -> Scenario:
    """`python` and `onnx` serve the same weights, by the Python backend and by ONNX Runtime's."""
    # One thread each, so that what an instance adds is not what it takes from the others' threads.
    alone, two, four = (Change(instances=count, threads=1) for count in (1, 2, 4))
    batching = Change(dynamic_batching=True, delay_us=100)
    arms = (
        Arm(ONE, alone, _asked(python, 1, 8, 16)),
        Arm(BATCHES, alone, (LoadSpec(python, 1, batch=4), LoadSpec(python, 1, batch=16))),
        Arm(DYNAMIC, batching.over(alone), _asked(python, 8, 16)),
        Arm(TWO, two, _asked(python, 8, 16)),
        Arm(FOUR, four, _asked(python, 8, 16)),
        Arm(ONNX, alone, _asked(onnx, 1, 8, 16)),
        Arm(SCALED, batching.over(two), _asked(onnx, 8, 16)),
    )
    about = (
        f"{title} on this machine: the same examples answered by the Python model and by its ONNX export, "
        "while the config changes on the running server. An instance has one thread; every client asks "
        "again as soon as it is answered."
    )
    return Scenario(name, title, about, arms, read)


def _asked(model: str, *levels: int) -> tuple[LoadSpec, ...]:
    return tuple(LoadSpec(model, level) for level in levels)


def read(points: Points) -> list[Statement]:
    """What the lab teaches, held against these figures."""
    return [
        _queue_grows(points),
        _one_instance_is_full(points),
        _client_batches(points),
        _batches_form(points),
        _instances(points),
        _gain(points, ONNX, ONE, "the same weights as ONNX answer more than the Python model"),
        _gain(points, SCALED, ONNX, "two ONNX instances answer more than one"),
    ]


def _queue_grows(points: Points) -> Statement:
    words = "with one instance, the queue's share of the latency grows with concurrency"
    found = [point for level in (1, 8, 16) for point in points.of(ONE, level=level)]
    if len(found) < 3:
        return not_measured(words)
    shares = [point.split_ms.queue / point.latency_ms.mean for point in found]
    figures = over(found, lambda p: f"{p.split_ms.queue / p.latency_ms.mean:.0%}", _at)
    return claim(shares[0] < shares[1] < shares[2] and shares[2] > 0.5, words, figures)


def _one_instance_is_full(points: Points) -> Statement:
    words = "more clients bring one instance hardly more throughput, only latency"
    few, many = points.get(ONE, 1), points.get(ONE, 16)
    if few is None or many is None:
        return not_measured(words)
    gained, waited = times_the_throughput(many, few), times_the_latency(many, few)
    figures = f"{gained:.2f} times the throughput and {waited:.1f} times the latency from c=1 to c=16"
    return claim(all_of(below(gained, 1.5), above(waited, 4)), words, figures)


def _client_batches(points: Points) -> Statement:
    words = "rows sent together cost less each"
    single, batched = points.get(ONE, 1), points.get(BATCHES, 1, 16)
    if single is None or batched is None:
        return not_measured(words)
    gained = times_the_throughput(batched, single)
    figures = (
        f"{batched.rows_per_s.value:.0f} rows/s in batches of 16, {single.rows_per_s.value:.0f} one by one, "
        f"{gained:.2f} times; every one of the 16 answers was checked"
    )
    return claim(above(gained, 1 + NOISE), words, figures)


def _batches_form(points: Points) -> Statement:
    words = "dynamic batching merges waiting requests, and one instance answers more for it"
    with_it, without = points.get(DYNAMIC, 8), points.get(ONE, 8)
    if with_it is None or without is None:
        return not_measured(words)
    gained = times_the_throughput(with_it, without)
    figures = f"{with_it.executed_rows:.1f} rows per batch and {gained:.2f} times the throughput at c=8"
    return claim(all_of(with_it.executed_rows > 1.5, above(gained, 1 + NOISE)), words, figures)


def _instances(points: Points) -> Statement:
    cpus = available_cpus()
    words = f"instances help up to the number of cores, here {cpus}"
    one, two, four = (points.get(arm, 8) for arm in (ONE, TWO, FOUR))
    if one is None or two is None or four is None:
        return not_measured(words)
    second, third = times_the_throughput(two, one), times_the_throughput(four, two)
    figures = f"2 instances {second:.2f} times 1, 4 instances {third:.2f} times 2, at c=8"
    # Doubling the instances is to add a quarter at least while there are cores for them.
    helps = (
        above(gain, 1.25) if cpus >= count else below(gain, 1.25) for gain, count in ((second, 2), (third, 4))
    )
    return claim(all_of(*helps), words, figures)


def _gain(points: Points, ours: str, theirs: str, words: str) -> Statement:
    mine, other = points.get(ours, 8), points.get(theirs, 8)
    if mine is None or other is None:
        return not_measured(words)
    gained = times_the_throughput(mine, other)
    figures = (
        f"{mine.rows_per_s.value:.0f} against {other.rows_per_s.value:.0f} rows/s, {gained:.2f} times, at c=8"
    )
    return claim(above(gained, 1 + NOISE), words, figures)


def _at(point: Point) -> str:
    return f"c={point.demand.level:g}"
