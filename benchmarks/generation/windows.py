"""What was measured, a line each in a file, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.errors import UsageError
from gourmet.measure.stats import Array, latency
from peers.processes import CpuUsed

_FILE: Final = "windows.jsonl"


@dataclass(frozen=True)
class Key:
    """Which window: an arm under a load, in a turn."""

    turn: int
    arm: str
    level: int


@dataclass(frozen=True)
class SentenceWindow:
    """Sentences that were answered while somebody looked, and what else is told of them."""

    key: Key
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    answers: int
    foreign_cores: float
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, key: Key, took_s: Array, seconds: float, foreign_cores: float, **figures: float
    ) -> SentenceWindow:
        if not len(took_s):
            raise UsageError(f"{key.arm} answered nothing in {seconds:.1f} s: take a longer --window")
        took = latency(1000 * np.asarray(took_s))
        return cls(
            key, len(took_s) / seconds, took.p50, took.p95, took.p99, len(took_s), foreign_cores, figures
        )


def foreign(looks: Sequence[CpuUsed], seconds: float) -> float:
    """The cores that processes took between two looks which are none of this measurement."""
    before, after = looks
    return max(0.0, (after.machine - before.machine) - (after.bench - before.bench)) / seconds


class Kept:
    """The windows of a run in its folder; `plan` is what makes it that run and no other."""

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        """Raises UsageError where the folder holds another run."""
        self._path = folder / _FILE
        self.windows: dict[Key, SentenceWindow] = {}
        wanted = json.loads(json.dumps(plan))
        if not self._path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"plan": wanted}) + "\n", encoding="utf-8")
            return
        first, *lines = self._path.read_text(encoding="utf-8").splitlines()
        if (other := json.loads(first)["plan"]) != wanted:
            changed = ", ".join(name for name in wanted if other.get(name) != wanted[name])
            raise UsageError(
                f"{self._path} is of a run with another {changed}: name another --out, or remove it"
            )
        for line in lines:
            told = json.loads(line)
            key = Key(**told.pop("key"))
            self.windows[key] = SentenceWindow(key, **told)

    def __contains__(self, key: Key) -> bool:
        return key in self.windows

    def keep(self, window: SentenceWindow) -> None:
        self.windows[window.key] = window
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(window)) + "\n")
