"""A candidate beside what is served, on the same examples held out: what it would win and lose."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gourmet.reports.table import columns
from gourmet.repository import versions
from gourmet.runtime import manifest
from gourmet.runtime.manifest import ManifestError

Verdict = Literal["better", "as good", "worse"]


@dataclass(frozen=True)
class Measure:
    """One measure of both, in points: percent, or those of a score. More is better."""

    what: str
    examples: int
    served: float
    candidate: float
    margin: float  # so many points may be lost

    @property
    def verdict(self) -> Verdict:
        change = self.candidate - self.served
        return "worse" if change < -self.margin else "better" if change > self.margin else "as good"


@dataclass(frozen=True)
class Comparison:
    """A candidate compared with a served version; without measures, `note` says why nothing was compared."""

    model: str
    version: str
    measures: Sequence[Measure] = ()
    note: str = ""

    @property
    def lost(self) -> list[Measure]:
        return [measure for measure in self.measures if measure.verdict == "worse"]

    def as_dict(self) -> dict[str, Any]:
        rows = [{**vars(measure), "verdict": measure.verdict} for measure in self.measures]
        return {"model": self.model, "version": self.version, "rows": rows, "note": self.note}

    def text(self) -> str:
        """A table for a terminal, served and candidate side by side."""
        head = ("held out", "examples", f"version {self.version}", "candidate", "may lose", "")
        rows = [
            (
                row.what,
                f"{row.examples}",
                f"{row.served:.1f}",
                f"{row.candidate:.1f}",
                f"{row.margin:.1f}",
                row.verdict.upper() if row.verdict == "worse" else row.verdict,
            )
            for row in self.measures
        ]
        if not rows:
            return self.note
        return "\n".join([columns([head, *rows]), *([self.note] if self.note else [])])

    def losses(self) -> str:
        """Describe in one line what would be lost."""
        return ", ".join(f"{row.what} {row.served:.1f} → {row.candidate:.1f}" for row in self.lost)


def serving(model: Path) -> Path | None:
    """The newest version of a model that can serve: its files are those of its manifest."""
    for number in reversed(versions(model)):
        with suppress(ManifestError):
            manifest.check(None, {}, model / str(number))
            return model / str(number)
    return None
