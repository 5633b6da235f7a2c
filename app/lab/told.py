"""What a report's JSON says in short: of `gourmet bench`, `gourmet tune`, or whatever lies in its place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_MOST_CHARACTERS: Final = 300
_MOST_BYTES: Final = 20_000_000


@dataclass(frozen=True)
class Measured:
    name: str
    rows_per_s: float
    p95_ms: float


@dataclass(frozen=True)
class Told:
    when: datetime
    machine: str
    title: str = ""
    says: str = ""
    best: Measured | None = None
    points: int = 0
    refused: int = 0


def read(folder: Path) -> Told | None:
    """What the JSON in `folder` says, if it can be read; who reads the page can do nothing about it."""
    for name, summary in FILES.items():
        path = folder / name
        try:
            # A link could lead out of the folder.
            if path.resolve() == path and path.is_file() and path.stat().st_size < _MOST_BYTES:
                return summary(json.loads(path.read_bytes()))
        # The last is of brackets in brackets in brackets.
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            continue
    return None


def short(text: object) -> str:
    """Text on one line, and not too much of it."""
    words = " ".join(str(text).split())
    return words if len(words) <= _MOST_CHARACTERS else words[: _MOST_CHARACTERS - 1] + "…"


def _bench(told: Mapping[str, Any]) -> Told:
    points = [_measured(point) for point in told["points"]]
    return Told(
        when=_when(told),
        machine=_machine(told),
        title=short(told["title"]),
        best=max(points, key=lambda point: point.rows_per_s, default=None),
        points=len(points),
        refused=len(told.get("refused", ())),
    )


def _tune(told: Mapping[str, Any]) -> Told:
    return Told(when=_when(told), machine=_machine(told), says=short(told["sentence"]))


FILES: Final[Mapping[str, Callable[[Mapping[str, Any]], Told]]] = {"bench.json": _bench, "tune.json": _tune}


def _when(told: Mapping[str, Any]) -> datetime:
    when = datetime.fromisoformat(told["when"])
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _machine(told: Mapping[str, Any]) -> str:
    machine = told["machine"]
    return short(", ".join(str(machine[what]) for what in ("processor", "cpus") if what in machine))


def _measured(told: Mapping[str, Any]) -> Measured:
    demand = told["demand"]
    level = f"c={demand['level']:g}" if demand["arrivals"] == "closed" else f"{demand['level']:g}/s"
    figures = float(told["rows_per_s"]["value"]), float(told["latency_ms"]["p95"])
    if not all(map(math.isfinite, figures)):
        raise ValueError(f"a figure is {figures}")
    return Measured(short(f"{told['arm']} {level}"), *figures)
