"""The sentence of a search: what it found, against what, and why, out of the measured figures.

The throughput of a model is the number of executions that run at a time, divided by what one costs a
row. So of two configs, one is ahead by the first, by the second, or by both; Triton's own statistics
tell how much of the ratio each makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gourmet.measure.claims import below
from gourmet.measure.results import Point
from gourmet.tuning.goal import Goal, nearest, p95s
from gourmet.tuning.results import PRESENT, Confirmation, Trial

# A part that makes less of the difference than this is not named.
_WORTH_NAMING: Final = 0.03
_FULL: Final = 0.9


def sentence(goal: Goal, best: Trial, duel: Confirmation | None, cpus: int) -> str:
    if goal.best(best.points) is None and duel is None:
        return _out_of_reach(goal, best)
    if duel is None:
        return "The present config stays: no other could be measured."
    ours, theirs = duel.ours, duel.theirs
    figures = f"“{best.name}” reaches {_reached(ours)}"
    against = f"{_gain(goal, duel)} the present config ({_reached(theirs)})"
    if not duel.won:
        return f"The present config stays: the best found, {figures}, {against}, {_why_not(duel)}."
    if duel.only_ours:
        against += f", which misses the goal with a p95 of at least {min(p95s(theirs)):.3g} ms in every turn"
    return f"{figures}, {against}, because {because(ours, theirs, cpus)}."


def _why_not(duel: Confirmation) -> str:
    """Why the best that was found did not win."""
    if not duel.keeps:
        return "its p95 does not keep the goal"
    # Noise is only what the interval does not exclude.
    return "which is worse" if below(duel.gain, 1) else "which may be noise"


def because(ours: Point, theirs: Point, cpus: int) -> str:
    """Why one point is ahead of the other, as far as the figures tell."""
    parts = sorted(_parts(ours, theirs, cpus), reverse=True)
    named = [words for weight, words in parts if weight > _WORTH_NAMING]
    if not named:
        return "of nothing that the figures show: " + ", ".join(words for _, words in parts)
    return " and ".join(named[:2])


def row_ms(point: Point) -> float:
    """What one row costs in the network, by Triton's count: the time of its execution, shared out."""
    rows = sum(size.rows * size.executions for size in point.batches)
    return sum(size.infer_ms * size.executions for size in point.batches) / rows if rows else 0.0


def at_a_time(point: Point) -> float:
    """How many executions ran at the same time on average."""
    return point.rows_per_s.value * row_ms(point) / 1000


def _parts(ours: Point, theirs: Point, cpus: int) -> list[tuple[float, str]]:
    parallel = _log(at_a_time(ours), at_a_time(theirs))
    cheaper = _log(row_ms(theirs), row_ms(ours))
    queue = (theirs.split_ms.queue - ours.split_ms.queue) / max(theirs.latency_ms.mean, 1e-9)
    batches = ""
    if abs(ours.executed_rows / max(theirs.executed_rows, 1e-9) - 1) > _WORTH_NAMING:
        batches = f", in batches of {ours.executed_rows:.1f} rows instead of {theirs.executed_rows:.1f}"
    busy = _busy(ours, theirs, cpus)
    return [
        (
            parallel,
            f"{at_a_time(ours):.1f} executions run at a time instead of {at_a_time(theirs):.1f}{busy}",
        ),
        (cheaper, f"a row costs {row_ms(ours):.3g} ms of execution instead of {row_ms(theirs):.3g}{batches}"),
        (
            queue,
            f"a request waits {ours.split_ms.queue:.3g} ms in the queue instead of "
            f"{theirs.split_ms.queue:.3g} (of {ours.latency_ms.mean:.3g} and {theirs.latency_ms.mean:.3g})",
        ),
    ]


def _busy(ours: Point, theirs: Point, cpus: int) -> str:
    mine, other = ours.usage.server_cores, theirs.usage.server_cores
    if mine is None or other is None:
        return ""
    full = ", all that there are" if mine > _FULL * cpus else ""
    return f" ({mine:.1f} of {cpus} cores busy instead of {other:.1f}{full})"


def _log(ours: float, theirs: float) -> float:
    return math.log(ours / theirs) if ours > 0 and theirs > 0 else 0.0


def _reached(point: Point) -> str:
    return (
        f"{point.rows_per_s.value:.4g} rows/s with a p95 of {point.latency_ms.p95:.3g} ms at {point.demand}"
    )


def _gain(goal: Goal, duel: Confirmation) -> str:
    gain = duel.gain
    interval = f" ({gain.low:.2f}–{gain.high:.2f})" if gain.low is not None and gain.high is not None else ""
    times = f"{gain.value:.2f}{interval} times"
    return f"{times} the throughput of" if goal.kind == "throughput" else f"a p95 {times} as short as that of"


def _out_of_reach(goal: Goal, best: Trial) -> str:
    point = nearest(best.points)
    name = "the present one" if best.name == PRESENT else f"“{best.name}”"
    return (
        f"No config that was tried reaches a p95 of {goal.p95_ms:g} ms; the nearest is "
        f"{name} with {point.latency_ms.p95:.3g} ms and "
        f"{point.rows_per_s.value:.4g} rows/s at {point.demand}, of which {_share(point)}."
    )


def _share(point: Point) -> str:
    """Where most of the latency goes."""
    parts: Sequence[str] = ("queue", "input", "infer", "output", "network")
    most = max(parts, key=lambda name: float(getattr(point.split_ms, name)))
    part = float(getattr(point.split_ms, most))
    return f"{part / point.latency_ms.mean:.0%} of the mean is {most}"
