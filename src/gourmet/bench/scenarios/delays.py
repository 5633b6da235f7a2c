"""What a queue delay does to a model, read from arms that differ in nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gourmet.bench.compare import NOISE
from gourmet.bench.results import Finding, Point
from gourmet.bench.scenario import finding, not_measured, over, ratio

# Two arms with the same config differ by this much from one turn to the next.
_NOISE: Final = 0.10
_NO_GAIN: Final = ", which is no more than noise: waiting does not pay here"


def name(delay_us: int) -> str:
    return f"delay {delay_us} µs"


def only_noise(points: Sequence[Point], model: str) -> Finding:
    """Where nothing can be batched, the delays must make no difference."""
    claim = f"delays change nothing on {model}, which cannot batch (max_batch_size 0)"
    if len(points) < 2:
        return not_measured(claim)
    rates = [point.rows_per_s.value for point in points]
    spread = max(rates) / min(rates) - 1
    ordered = _rises_or_falls(rates)
    rows = max(point.executed_rows for point in points)
    numbers = (
        f"{rows:.2f} rows a batch at most, {spread:.1%} between the fastest and the slowest delay, "
        f"{'in the order' if ordered else 'in no order'} of the delays; the dynamic batcher sends a lone "
        "row on at once, so that what differs is noise"
    )
    return finding(rows <= 1.0 and (spread < _NOISE or not ordered), claim, numbers)


def batches_and_waits(points: Sequence[Point], model: str) -> list[Finding]:
    """Where rows can be batched: does waiting fill the batches, and what does it cost?"""
    if len(points) < 2:
        return [not_measured(f"delays on {model}")]
    first, last = points[0], points[-1]
    at = f"at c={first.demand.level:g}"
    best = max(points, key=lambda point: point.rows_per_s.value)
    gained = ratio(best, first)
    better = gained.low is not None and gained.low > 1 + NOISE
    return [
        finding(
            last.split_ms.queue > first.split_ms.queue,
            f"{model} {at}: a longer delay is time in the queue",
            over(points, lambda p: f"{p.split_ms.queue:.2f} ms", _delay),
        ),
        finding(
            last.executed_rows > first.executed_rows * 1.2,
            f"{model} {at}: a longer delay fills the batches",
            over(points, lambda p: f"{p.executed_rows:.2f} rows", _delay),
        ),
        Finding(
            f"{model} {at}: most throughput with {best.arm}, {best.rows_per_s.value:.4g} rows/s, "
            f"{gained:.2f} times that with {first.arm}{'' if better or best is first else _NO_GAIN}."
        ),
    ]


def _rises_or_falls(rates: Sequence[float]) -> bool:
    return list(rates) in (sorted(rates), sorted(rates, reverse=True))


def _delay(point: Point) -> str:
    return point.arm.rpartition("delay ")[2]
