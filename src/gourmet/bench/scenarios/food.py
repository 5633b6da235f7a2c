"""The food lab: one instance, client batches, dynamic batching, more instances, ONNX, ONNX scaled."""

from __future__ import annotations

from typing import Final

from gourmet.bench.results import Demand, Finding, Point
from gourmet.bench.scenario import Arm, Points, Scenario, finding, not_measured, over, ratio
from gourmet.config_change import Change
from gourmet.systems.instances import available_cpus

_PYTHON: Final = "food_classifier"
_ONNX: Final = "food_classifier_onnx"

ONE: Final = "one instance"
BATCHES: Final = "client batches"
DYNAMIC: Final = "dynamic batching"
TWO: Final = "two instances"
FOUR: Final = "four instances"
ONNX: Final = "ONNX"
SCALED: Final = "ONNX scaled"

_ABOUT: Final = (
    "The food lab on this machine: the same photos answered by the Python model and by its ONNX export, "
    "while the config changes on the running server. An instance has one thread; every client asks again "
    "as soon as it is answered."
)


def scenario() -> Scenario:
    # One thread each, so that what an instance adds is not what it takes from the others' threads.
    alone, two, four = (Change(instances=count, threads=1) for count in (1, 2, 4))
    batching = Change(dynamic_batching=True, delay_us=100)
    arms = (
        Arm(ONE, alone, _asked(_PYTHON, 1, 8, 16)),
        Arm(BATCHES, alone, (Demand(_PYTHON, 1, batch=4), Demand(_PYTHON, 1, batch=16))),
        Arm(DYNAMIC, batching.over(alone), _asked(_PYTHON, 8, 16)),
        Arm(TWO, two, _asked(_PYTHON, 8, 16)),
        Arm(FOUR, four, _asked(_PYTHON, 8, 16)),
        Arm(ONNX, alone, _asked(_ONNX, 1, 8, 16)),
        Arm(SCALED, batching.over(two), _asked(_ONNX, 8, 16)),
    )
    return Scenario("food", "The food lab", _ABOUT, arms, read)


def _asked(model: str, *levels: int) -> tuple[Demand, ...]:
    return tuple(Demand(model, level) for level in levels)


def read(points: Points) -> list[Finding]:
    """What the lab teaches, held against these figures."""
    return [
        _queue_grows(points),
        _one_instance_is_full(points),
        _client_batches(points),
        _batches_form(points),
        _instances(points),
        _gain(points, ONNX, ONE, "the same weights as ONNX answer more than the Python model", 1.1),
        _gain(points, SCALED, ONNX, "two ONNX instances answer more than one", 1.2),
    ]


def _queue_grows(points: Points) -> Finding:
    claim = "with one instance, the queue's share of the latency grows with concurrency"
    found = [point for level in (1, 8, 16) for point in points.of(ONE, level=level)]
    if len(found) < 3:
        return not_measured(claim)
    shares = [point.split_ms.queue / point.latency_ms.mean for point in found]
    numbers = over(found, lambda p: f"{p.split_ms.queue / p.latency_ms.mean:.0%}", _at)
    return finding(shares[0] < shares[1] < shares[2] and shares[2] > 0.5, claim, numbers)


def _one_instance_is_full(points: Points) -> Finding:
    claim = "more clients bring one instance hardly more throughput, only latency"
    few, many = points.get(ONE, 1), points.get(ONE, 16)
    if few is None or many is None:
        return not_measured(claim)
    gained, waited = ratio(many, few), many.latency_ms.mean / few.latency_ms.mean
    numbers = f"{gained:.2f} times the throughput and {waited:.1f} times the latency from c=1 to c=16"
    return finding(gained.value < 1.5 and waited > 4, claim, numbers)


def _client_batches(points: Points) -> Finding:
    claim = "rows sent together cost less each"
    single, batched = points.get(ONE, 1), points.get(BATCHES, 1, 16)
    if single is None or batched is None:
        return not_measured(claim)
    gained = ratio(batched, single)
    numbers = (
        f"{batched.rows_per_s.value:.0f} rows/s in batches of 16, {single.rows_per_s.value:.0f} one by one, "
        f"{gained:.2f} times; every one of the 16 answers was checked"
    )
    return finding(gained.value > 1.05, claim, numbers)


def _batches_form(points: Points) -> Finding:
    claim = "dynamic batching merges waiting requests, and one instance answers more for it"
    with_it, without = points.get(DYNAMIC, 8), points.get(ONE, 8)
    if with_it is None or without is None:
        return not_measured(claim)
    gained = ratio(with_it, without)
    numbers = f"{with_it.executed_rows:.1f} rows a batch and {gained:.2f} times the throughput at c=8"
    return finding(with_it.executed_rows > 1.5 and gained.value > 1.05, claim, numbers)


def _instances(points: Points) -> Finding:
    cpus = available_cpus()
    claim = f"instances help up to the number of cores, here {cpus}"
    one, two, four = (points.get(arm, 8) for arm in (ONE, TWO, FOUR))
    if one is None or two is None or four is None:
        return not_measured(claim)
    second, third = ratio(two, one), ratio(four, two)
    numbers = f"2 instances {second:.2f} times 1, 4 instances {third:.2f} times 2, at c=8"
    helps = [gain.value > 1.15 for gain in (second, third)]
    return finding(helps == [cpus >= 2, cpus >= 4], claim, numbers)


def _gain(points: Points, ours: str, theirs: str, claim: str, wanted: float) -> Finding:
    mine, other = points.get(ours, 8), points.get(theirs, 8)
    if mine is None or other is None:
        return not_measured(claim)
    gained = ratio(mine, other)
    numbers = (
        f"{mine.rows_per_s.value:.0f} against {other.rows_per_s.value:.0f} rows/s, {gained:.2f} times, at c=8"
    )
    return finding(gained.value > wanted, claim, numbers)


def _at(point: Point) -> str:
    return f"c={point.demand.level:g}"
