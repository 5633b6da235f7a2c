"""Compare a candidate with what is served, on the same held-out examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gourmet.reports.table import columns
from gourmet.repository import versions
from gourmet.runtime import manifest
from gourmet.runtime.manifest import ManifestError
from gourmet.runtime.reading import malformed_as_value_error

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


def comparison_of(
    version: Path, weights_sha256: str, measured: Callable[[], Iterable[Measure]], lack: str
) -> Comparison:
    """Compare a candidate with these weights with a served version, unless that has the same weights.

    `lack` says why there is nothing to compare on, for when `measured` measures nothing.
    """
    note, measures = "", list[Measure]()
    if weights_of(version) == weights_sha256:
        note = f"version {version.name} has the same weights"
    else:
        try:
            measures = list(measured())
            note = "" if measures else f"accuracy was not compared: {lack}"
        except Exception as exc:  # a runtime raises its own exceptions on a file that it cannot open
            reason = next(iter(str(exc).splitlines()), type(exc).__name__)[:80]
            note = f"accuracy was not compared: version {version.name} cannot be asked here ({reason})"
    return Comparison(version.parent.name, version.name, measures, note)


def weights_of(version: Path) -> str:
    """Return the sha256 of the weights that a version was made of, or an empty text."""
    with suppress(OSError, ValueError), malformed_as_value_error():
        return str(manifest.facts(version)["training"]["weights_sha256"])
    return ""


def serving(model: Path) -> Path | None:
    """Return the newest version that can serve: its files are those of its manifest."""
    for number in reversed(versions(model)):
        with suppress(ManifestError):
            manifest.check(None, {}, model / str(number))
            return model / str(number)
    return None
