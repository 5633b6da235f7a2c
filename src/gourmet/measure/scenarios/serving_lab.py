"""The serving lab, from one instance to ONNX scaled, and what one GPU carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from gourmet.measure.comparison import (
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
from gourmet.measure.scenario import Arm, Claims, Points, Scenario, in_flight
from gourmet.repository.config_change import Change
from gourmet.runtime.instances import available_cpus

ONE: Final = "one instance"
BATCHES: Final = "client batches"
DYNAMIC: Final = "dynamic batching"
TWO: Final = "two instances"
FOUR: Final = "four instances"
ONNX: Final = "ONNX"
SCALED: Final = "ONNX scaled"

_LEVELS: Final = (1, 8, 32, 128, 256)
_INSTANCES: Final = (1, 2, 4)

_ABOUT_ONE_GPU: Final = (
    "Models on a GPU, one row at a time and in batches of up to 16 that Triton puts together, with "
    "one, two and four instances; every client asks again as soon as it is answered."
)


def scenario(name: str, title: str, python: str, onnx: str) -> Scenario:
    """`python` and `onnx` serve the same weights, by the Python backend and by ONNX Runtime's."""
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
    return Scenario(name, title, about, arms, claims)


def _more(ours: str, theirs: str) -> Callable[[Points], Found]:
    return lambda points: more(points.get(ours, 8), points.get(theirs, 8))


def _queue_grows(points: Points) -> Found:
    found = [points.get(ONE, level) for level in (1, 8, 16)]
    shares = [point.split_ms.queue / point.latency_ms.mean for point in found]
    figures = over(found, lambda p: f"{p.split_ms.queue / p.latency_ms.mean:.0%}", lambda p: p.load.at)
    return shares[0] < shares[1] < shares[2] and shares[2] > 0.5, figures


def _one_instance_is_full(points: Points) -> Found:
    few, many = points.get(ONE, 1), points.get(ONE, 16)
    gained, waited = times_the_throughput(many, few), times_the_latency(many, few)
    figures = f"{gained:.2f} times the throughput and {waited:.1f} times the latency from c=1 to c=16"
    return all_of(below(gained, 1.5), above(waited, 4)), figures


def _batches_form(points: Points) -> Found:
    batching = points.get(DYNAMIC, 8)
    gained, figures = more(batching, points.get(ONE, 8))
    rows = batching.executed_rows
    return all_of(rows > 1.5, gained), f"{rows:.1f} rows per batch, {figures}"


def _instances_help(points: Points) -> Found:
    one, two, four = (points.get(arm, 8) for arm in (ONE, TWO, FOUR))
    second, third = times_the_throughput(two, one), times_the_throughput(four, two)
    # Doubling the instances is to add a quarter at least while there are cores for them.
    helps = (
        above(gain, 1.25) if available_cpus() >= count else below(gain, 1.25)
        for gain, count in ((second, 2), (third, 4))
    )
    return all_of(*helps), f"2 instances {second:.2f} times 1, 4 instances {third:.2f} times 2, at c=8"


def one_gpu(name: str, reference: Mapping[str, float]) -> Scenario:
    """`reference` is what a known lab reports as the best of each model on a GPU, in rows per second."""
    batching = Change(dynamic_batching=True, delay_us=100, preferred_batches=(16,))
    arms = []
    for model in reference:
        for count in _INSTANCES:
            arm = f"{model}, {count} instance{'s' if count > 1 else ''}"
            alone, loads = Change(instances=count), in_flight(model, *_LEVELS)
            arms.append(Arm(f"{arm}, one row at a time", alone, loads))
            arms.append(Arm(f"{arm}, batches of up to 16", batching.over(alone), loads))

    claims: Claims = {
        f"{model} answers more than the {rate:g} rows/s of the reference lab": (
            partial(_best_on_gpu, model, rate)
        )
        for model, rate in reference.items()
    }
    return Scenario(name, "One GPU", _ABOUT_ONE_GPU, tuple(arms), claims, needs_gpu=True)


def _best_on_gpu(model: str, reference: float, points: Points) -> Found:
    """The best that the model does, against the reference, and what it took."""
    found = [point for point in points.merged if point.load.model == model]
    if not found:
        raise NotMeasured
    best = max(found, key=lambda point: point.rows_per_s.value)
    figures = (
        f"at best {best.rows_per_s:.4g} rows/s with {best.arm} at {best.load}, "
        f"{best.executed_rows:.1f} rows per batch, p99 {best.latency_ms.p99:.1f} ms"
    )
    return above(best.rows_per_s, reference), figures
