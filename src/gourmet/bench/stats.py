"""Compute figures from samples: pure functions, no clock, no server."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from gourmet.bench.results import BatchSize, Estimate, Latency, Point, Split, Stream, Usage, Window

Array = npt.NDArray[np.float64]


def interval(values: Sequence[float], resolution: float = 0.0) -> Estimate:
    """Return the mean of independent rates or times with its 95 % interval, unknown for one sample.

    Student's, of the logarithms: noise multiplies, and no rate is below zero. Each value may be off by the
    share `resolution`; without it, equal values have no interval.
    """
    mean = statistics.fmean(values)
    if len(values) < 2 or min(values) <= 0:
        return Estimate(mean)
    return _around(mean, _variance(values, resolution) / len(values), len(values) - 1)


def ratio(
    ours: Sequence[float], theirs: Sequence[float], resolutions: tuple[float, float] = (0.0, 0.0)
) -> Estimate:
    """Return ours ÷ theirs with its 95 % interval (Welch's, of the logarithms).

    Where a window had no answer at all, no interval is known.
    """
    if min(*ours, *theirs, 1.0) <= 0:
        return Estimate(statistics.fmean(ours) / (statistics.fmean(theirs) or math.inf))
    value = statistics.geometric_mean(ours) / statistics.geometric_mean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return Estimate(value)
    first, second = (
        _variance(values, resolution) / len(values)
        for values, resolution in zip((ours, theirs), resolutions, strict=True)
    )
    parts = first**2 / (len(ours) - 1) + second**2 / (len(theirs) - 1)
    return _around(value, first + second, (first + second) ** 2 / parts if parts else math.inf)


def rate_ratio(ours: Point, theirs: Point) -> Estimate:
    """Return our throughput ÷ theirs with its interval."""
    return ratio(ours.rates, theirs.rates, (ours.resolution, theirs.resolution))


def _variance(values: Sequence[float], resolution: float) -> float:
    """Return the variance of the logarithms, which is at least that of the resolution."""
    return max(statistics.variance(map(math.log, values)), resolution**2 / 3)


def _around(value: float, variance_of_log: float, degrees: float) -> Estimate:
    if not variance_of_log:
        return Estimate(value)
    factor = math.exp(float(stdtrit(degrees, 0.975)) * math.sqrt(variance_of_log))
    return Estimate(value, value / factor, value * factor)


def latency(milliseconds: npt.NDArray[Any]) -> Latency:
    p50, p90, p95, p99 = (float(value) for value in np.percentile(milliseconds, (50, 90, 95, 99)))
    return Latency(float(milliseconds.mean()), p50, p90, p95, p99)


def stream(
    due: Array,
    pieces: Sequence[Sequence[float]],
    ours: npt.NDArray[np.bool_],
    stretch: tuple[float, float],
    count: int,
) -> Stream | None:
    """Summarise the times of pieces: the first since its request was due, the others since the one before.

    `pieces` has the moments of each answer's, none where answers came whole. Times are those of `ours`, the
    requests that the measurement is about; rates count every piece that came during the `stretch`.
    """
    if not any(pieces):
        return None
    answered = [moments for moments, counts in zip(pieces, ours, strict=True) if counts]
    first = np.array([moments[0] for moments in answered]) - due[ours]
    between = np.concatenate([np.diff(moments) for moments in answered])
    moments = np.concatenate([np.asarray(times) for times in pieces])
    held, edges = np.histogram(moments, bins=count, range=stretch)
    return Stream(
        first_ms=latency(1000 * first),
        between_ms=latency(1000 * between) if between.size else None,
        pieces_per_s=interval((held / np.diff(edges)).tolist()),
        pieces_per_answer=len(moments) / len(pieces),
    )


def unsteadiness(rates: Sequence[float]) -> float:
    """Return the largest distance of a window from the median, as a share of the median."""
    middle = statistics.median(rates)
    return max(abs(rate - middle) for rate in rates) / middle if middle else math.inf


def windows(due: Array, done: Array, began: float, ended: float, count: int) -> tuple[Window, ...]:
    """Divide a measurement into `count` equal windows, each with its answers and their mean latency."""
    edges = np.linspace(began, ended, count + 1)
    stretch = (ended - began) / count
    stretches = []
    for left, right in itertools.pairwise(edges):
        inside = (done >= left) & (done < right)
        took_ms = 1000 * (done[inside] - due[inside])
        mean_ms = float(took_ms.mean()) if took_ms.size else 0.0
        stretches.append(Window(took_ms.size / stretch, mean_ms))
    return tuple(stretches)


def in_flight(due: Array, done: Array, began: float, ended: float) -> float:
    """Return the mean number of requests under way."""
    spent = np.minimum(done, ended) - np.maximum(due, began)
    return float(np.clip(spent, 0, None).sum() / (ended - began))


def merge(turns: Sequence[Point]) -> Point:
    """Merge the turns of a point: means over the turns, whose spread gives the interval.

    Percentiles are averaged over the turns: an approximation.
    """
    if len(turns) == 1:
        return turns[0]
    sizes: dict[int, list[BatchSize]] = {}
    for size in (size for point in turns for size in point.batches):
        sizes.setdefault(size.rows, []).append(size)
    streams = [point.stream for point in turns if point.stream]
    pieces = interval([point_stream.pieces_per_s.value for point_stream in streams]) if streams else None
    requests = sum(point.requests for point in turns)
    return replace(
        turns[0],
        rows_per_s=interval([point.rows_per_s.value for point in turns], len(turns) / max(1, requests)),
        latency_ms=_mean([point.latency_ms for point in turns]),
        split_ms=_mean([point.split_ms for point in turns]),
        batches=tuple(_sum(rows, same) for rows, same in sorted(sizes.items())),
        windows=tuple(Window(p.rows_per_s.value / p.load.batch, p.latency_ms.mean) for p in turns),
        requests=requests,
        errors=dict(sum((Counter(point.errors) for point in turns), Counter[str]())),
        usage=_mean([point.usage for point in turns]),
        transferred=statistics.fmean(point.transferred for point in turns),
        checks=tuple(check for point in turns for check in point.checks),
        attempts=max(point.attempts for point in turns),
        turns=len(turns),
        stream=replace(_mean(streams), pieces_per_s=pieces) if pieces else None,
    )


def _mean(turns: Sequence[Any]) -> Any:
    """Return the mean of each figure; None if a turn lacks it."""
    if None in turns:
        return None
    first = turns[0]
    if isinstance(first, Latency | Split | Stream | Estimate | Usage):
        return replace(first, **{name: _mean([vars(turn)[name] for turn in turns]) for name in vars(first)})
    return statistics.fmean(turns)


def _sum(rows: int, sizes: Sequence[BatchSize]) -> BatchSize:
    count = sum(size.executions for size in sizes)
    return BatchSize(rows, count, sum(size.infer_ms * size.executions for size in sizes) / count)
