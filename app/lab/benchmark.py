"""What a saved benchmark says in short; its JSON is that of `gourmet bench`, or whatever lies there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

FILE: Final = "bench.json"
PAGE: Final = "index.html"
_MOST_CHARACTERS: Final = 160


@dataclass(frozen=True)
class Best:
    """The point of the highest throughput."""

    name: str
    rows_per_s: float
    p95_ms: float


@dataclass(frozen=True)
class Benchmark:
    title: str
    when: datetime
    machine: str
    points: int
    refused: int
    best: Best | None


def read(path: Path) -> Benchmark | None:
    """What `path` says, if it can be read as a benchmark; whoever reads the page can do nothing about it."""
    try:
        return _summary(json.loads(path.read_bytes()))
    # The last is of brackets in brackets in brackets.
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def short(text: object) -> str:
    """Text on one line, and not too much of it."""
    words = " ".join(str(text).split())
    return words if len(words) <= _MOST_CHARACTERS else words[: _MOST_CHARACTERS - 1] + "…"


def _summary(told: Mapping[str, Any]) -> Benchmark:
    when = datetime.fromisoformat(told["when"])
    machine = told["machine"]
    points = [_point(point) for point in told["points"]]
    return Benchmark(
        title=short(told["title"]),
        when=when if when.tzinfo else when.replace(tzinfo=UTC),
        machine=short(", ".join(str(machine[what]) for what in ("processor", "cpus") if what in machine)),
        points=len(points),
        refused=len(told.get("refused", ())),
        best=max(points, key=lambda point: point.rows_per_s, default=None),
    )


def _point(told: Mapping[str, Any]) -> Best:
    demand = told["demand"]
    level = f"c={demand['level']:g}" if demand["arrivals"] == "closed" else f"{demand['level']:g}/s"
    figures = float(told["rows_per_s"]["value"]), float(told["latency_ms"]["p95"])
    if not all(map(math.isfinite, figures)):
        raise ValueError(f"a figure is {figures}")
    return Best(short(f"{told['arm']} {level}"), *figures)
