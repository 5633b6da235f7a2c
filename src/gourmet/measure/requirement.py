"""What a figure is to reach, turn by turn: stated beforehand, met or not."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

HEADINGS: Final = ("goal", "measured", "wanted", "")


@dataclass(frozen=True)
class Requirement:
    """A figure per turn, and what its median should reach."""

    what: str
    per_turn: tuple[float, ...]
    wanted: float
    at_most: bool = False
    unit: str = "×"

    @property
    def median(self) -> float:
        return statistics.median(self.per_turn)

    @property
    def met(self) -> bool:
        return self.median <= self.wanted if self.at_most else self.median >= self.wanted

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "median": self.median, "met": self.met}

    def as_row(self, verdict: str = "") -> tuple[str, ...]:
        """Under the HEADINGS; `verdict` stands where the figure is not to be judged."""
        unit = self.unit if self.unit == "×" else f" {self.unit}"
        wanted = f"{'at most' if self.at_most else 'at least'} {self.wanted:g}{unit}"
        verdict = verdict or ("met" if self.met else "not met")
        return self.what, f"{median_and_range(self.per_turn, '.2f')}{unit}", wanted, verdict


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Turn by turn, so that a machine that gets slower in between favours neither."""
    return tuple(mine / their if their else float("inf") for mine, their in zip(ours, theirs, strict=True))


def median_and_range(values: Sequence[float], form: str) -> str:
    """The median, with the least and the most where there are several."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"
