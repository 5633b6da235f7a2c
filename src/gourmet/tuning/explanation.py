"""The sentence of a search: what it found, against what, and why, out of the measured figures.

The throughput of a model is the number of executions that run at a time, divided by what one costs a
row. So of two configs, one is ahead by the first, by the second, or by both; Triton's own statistics
tell how much of the ratio each makes.
"""

from __future__ import annotations

import math
from typing import Final

from gourmet.measure.claims import below
from gourmet.measure.results import Point
from gourmet.tuning.results import PRESENT, Confirmation, Trial, TuneRequest, Verdict, nearest, p95s

# A part that makes less of the difference than this is not named.
_WORTH_NAMING: Final = 0.03
_FULL: Final = 0.9


def sentence(wish: TuneRequest, verdict: Verdict, best: Trial, duel: Confirmation | None) -> str:
    if verdict == "out of reach":
        return _out_of_reach(wish, best)
    if verdict == "undecided":
        return (
            f"The present config stays: “{best.name}” could not be compared with it, since too few turns "
            "could be believed; wait until nothing else runs here, or use a longer --window."
        )
    if duel is None:
        return "The present config stays: no other could be measured."
    ours, theirs = duel.ours, duel.theirs
    figures = f"“{best.name}” reaches {_reached(ours)}"
    if wish.kind == "throughput":
        against = f"{duel.gain:.2f} times the throughput of the present config ({_reached(theirs)})"
    else:
        against = f"a p95 {duel.gain:.2f} times as short as that of the present config ({_reached(theirs)})"
    if not duel.won:
        # Noise is only what the interval does not exclude.
        why_not = "which is worse" if below(duel.gain, 1) else "which may be noise"
        why_not = why_not if duel.keeps else "its p95 does not keep the goal"
        return f"The present config stays: the best found, {figures}, {against}, {why_not}."
    if duel.only_ours:
        against += f", which misses the goal with a p95 of at least {min(p95s(theirs)):.3g} ms in every turn"
    return f"{figures}, {against}, because {because(ours, theirs, wish.cpus)}."


def because(ours: Point, theirs: Point, cpus: int) -> str:
    """Why one point is ahead of the other, as far as the figures tell."""
    (parallel, cost), (their_parallel, their_cost) = _parallel_and_cost(ours), _parallel_and_cost(theirs)
    busy = batches = ""
    mine, other = ours.usage.server_cores, theirs.usage.server_cores
    if mine is not None and other is not None:
        full = ", all that there are" if mine > _FULL * cpus else ""
        busy = f" ({mine:.1f} of {cpus} cores busy instead of {other:.1f}{full})"
    if abs(ours.executed_rows / max(theirs.executed_rows, 1e-9) - 1) > _WORTH_NAMING:
        batches = f", in batches of {ours.executed_rows:.1f} rows instead of {theirs.executed_rows:.1f}"
    queue, their_queue = ours.split_ms.queue, theirs.split_ms.queue
    took, they_took = ours.latency_ms.mean, theirs.latency_ms.mean
    # How much of the difference each makes.
    parts = {
        f"{parallel:.1f} executions run at a time instead of {their_parallel:.1f}{busy}": (
            _log(parallel, their_parallel)
        ),
        f"a row costs {cost:.3g} ms of execution instead of {their_cost:.3g}{batches}": (
            _log(their_cost, cost)
        ),
        f"a request waits {queue:.3g} ms in the queue instead of {their_queue:.3g} (of {took:.3g} and "
        f"{they_took:.3g})": (their_queue - queue) / max(they_took, 1e-9),
    }
    most_first = sorted(parts, key=parts.__getitem__, reverse=True)
    named = [words for words in most_first if parts[words] > _WORTH_NAMING]
    return " and ".join(named[:2]) or f"of nothing that the figures show: {', '.join(most_first)}"


def _parallel_and_cost(point: Point) -> tuple[float, float]:
    """How many executions ran at a time on average, and the milliseconds that a row costs in them."""
    rows = sum(size.rows * size.executions for size in point.batches)
    cost = sum(size.infer_ms * size.executions for size in point.batches) / rows if rows else 0.0
    return point.rows_per_s.value * cost / 1000, cost


def _log(ours: float, theirs: float) -> float:
    return math.log(ours / theirs) if ours > 0 and theirs > 0 else 0.0


def _reached(point: Point) -> str:
    p95 = f"a p95 of {point.latency_ms.p95:.3g} ms"
    return f"{point.rows_per_s.value:.4g} rows/s with {p95} at {point.demand}"


def _out_of_reach(wish: TuneRequest, best: Trial) -> str:
    point = nearest(best.points)
    name = "the present one" if best.name == PRESENT else f"“{best.name}”"
    most, ms = max(vars(point.split_ms).items(), key=lambda part: float(part[1]))
    return (
        f"No config that was tried reaches a p95 of {wish.p95_ms:g} ms; the nearest is {name}, which "
        f"reaches {_reached(point)}; {ms / point.latency_ms.mean:.0%} of its mean is {most}."
    )
