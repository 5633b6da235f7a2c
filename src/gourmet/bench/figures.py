"""Figures out of samples: pure functions, no clock, no server."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.bench.results import Estimate, Latency, Window

Array = npt.NDArray[np.float64]

# Student's t for 95 % on both sides, by degrees of freedom; beyond the table it is near the normal's.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def student_t(degrees: float) -> float:
    """The factor by which a standard error becomes a 95 % interval."""
    if degrees < 1:
        return math.inf
    return _T[int(degrees) - 1] if degrees <= len(_T) else 1.96 + 2.5 / degrees


def interval(values: Sequence[float]) -> Estimate:
    """The mean of independent measurements with its 95 % interval; of one, the interval is unknown."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean)
    margin = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - margin, mean + margin)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """ours ÷ theirs with its 95 % interval (Welch's, of the logarithms: a ratio's noise multiplies)."""
    logs = [[math.log(value) for value in values] for values in (ours, theirs)]
    value = math.exp(statistics.fmean(logs[0]) - statistics.fmean(logs[1]))
    if min(len(ours), len(theirs)) < 2:
        return Estimate(value)
    first, second = (statistics.variance(log) / len(log) for log in logs)
    if first + second == 0:
        return Estimate(value, value, value)
    degrees = (first + second) ** 2 / (first**2 / (len(ours) - 1) + second**2 / (len(theirs) - 1))
    margin = math.exp(student_t(degrees) * math.sqrt(first + second))
    return Estimate(value, value / margin, value * margin)


def latency(milliseconds: npt.NDArray[Any]) -> Latency:
    """The mean and the percentiles of many requests."""
    p50, p90, p95, p99 = (float(value) for value in np.percentile(milliseconds, (50, 90, 95, 99)))
    return Latency(float(milliseconds.mean()), p50, p90, p95, p99)


def little(in_flight: float, rate_times_latency: float) -> float:
    """How far Little's law is off, as a share of what is in flight."""
    return abs(rate_times_latency - in_flight) / in_flight


def unsteadiness(rates: Sequence[float]) -> float:
    """The window farthest from their median, as a share of it."""
    middle = statistics.median(rates)
    return max(abs(rate - middle) for rate in rates) / middle if middle else math.inf


def windows(due: Array, done: Array, began: float, ended: float, count: int) -> tuple[Window, ...]:
    """`count` equal stretches of a measurement: answers that arrived in each, and how long they took."""
    edges = np.linspace(began, ended, count + 1)
    stretch = (ended - began) / count
    found = []
    for left, right in itertools.pairwise(edges):
        inside = (done >= left) & (done < right)
        took_ms = 1000 * (done[inside] - due[inside])
        some = took_ms.size > 0
        mean, p95 = (float(took_ms.mean()), float(np.percentile(took_ms, 95))) if some else (0.0, None)
        found.append(Window(int(inside.sum()) / stretch, mean, p95))
    return tuple(found)


def in_flight(due: Array, done: Array, began: float, ended: float) -> float:
    """How many requests were under way on average: the time that each spent inside the stretch."""
    spent = np.minimum(done, ended) - np.maximum(due, began)
    return float(np.clip(spent, 0, None).sum() / (ended - began))
