"""Made-up points of a benchmark, for tests of figures and pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gourmet.bench import stats
from gourmet.bench.results import BatchSize, Evidence, Latency, LoadSpec, Point, Split, Usage, Window

STEADY = (100.0, 101.0, 99.0)
TWICE = (200.0, 202.0, 198.0)


def a_point(
    arm: str = "arm",
    rates: tuple[float, ...] = STEADY,
    level: float = 8,
    queue: float = 8.0,
    rows: int = 1,
    model: str = "m",
    **more: Any,
) -> Point:
    point = Point(
        arm=arm,
        load=LoadSpec(model, level),
        rows_per_s=stats.interval(rates),
        latency_ms=Latency(20.0, 19.0, 22.0, 23.0, 30.0),
        split_ms=Split(queue, 0.1, 10.0, 0.2, 1.7),
        batches=(BatchSize(rows, 50, 9.0),),
        windows=tuple(Window(rate, 1000 * level / rate) for rate in rates),
        requests=300,
        errors={},
        usage=Usage(0.2, 1.9, 512.0),
        checks=(Evidence("errors", "0 of 300", "none"),),
        config={"name": model, "max_batch_size": 8},
    )
    return replace(point, **more)
