"""What a task hands to the engine of deployment: targets that build, verify and compare themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from gourmet.progress import ReportProgress
from gourmet.reports.table import columns
from gourmet.repository.versions import weights_of
from gourmet.served.reading import error_summary
from gourmet.triton_client.model_config import Config


@dataclass(frozen=True)
class Check:
    """One line of the gate's table."""

    what: str
    measured: str
    allowed: str
    passed: bool


def table(checks: Sequence[Check]) -> str:
    """Format the checks as a table."""
    rows = [("check", "measured", "allowed", "")]
    rows += [(c.what, c.measured, c.allowed, "pass" if c.passed else "FAIL") for c in checks]
    return columns(rows)


Verdict = Literal["better", "as good", "worse"]


@dataclass(frozen=True)
class Measure:
    """One metric of the served version and the candidate, in percentage points. More is better."""

    what: str
    examples: int
    served: float
    candidate: float
    margin: float  # points that the candidate may lose

    @property
    def verdict(self) -> Verdict:
        change = self.candidate - self.served
        # A change that is not a number is worse.
        if not change >= -self.margin:
            return "worse"
        return "better" if change > self.margin else "as good"


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


@dataclass(frozen=True)
class ModelFile:
    """A file in the folder of a model's version."""

    name: str
    write: Callable[[Path], dict[str, Any]]  # returns the file's facts for the manifest
    # Compares the file with the network that it was made of.
    check: Callable[[Path], Sequence[Check]] = lambda path: ()
    is_optional: bool = False  # if a check fails, the version goes without this file


@dataclass(frozen=True)
class Target:
    """A served model that can be made of some weights."""

    model: str  # its folder in the model repository
    files: Sequence[ModelFile]  # the main one first
    # For a model that the repository lacks; None if the model must exist already.
    config: Config | None = None
    labels: Sequence[str] = ()
    # Each version gets its own generated config and labels, without those of the version before.
    replaces: bool = False
    # Shapes of inputs and outputs that follow from the weights, for the model's config.
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # Compares the candidate with a version that serves; None if the system has no comparison.
    compare: Callable[[Path, ReportProgress], Comparison] | None = None


@dataclass(frozen=True)
class Deployment:
    """Weights, ready to be deployed in each of their system's formats."""

    targets: Mapping[str, Target]  # by format
    facts: Mapping[str, Any] = field(default_factory=dict)  # about the weights, for the manifest
    # Values for the model's config, such as the threshold. A rollback brings the former ones back.
    calibration: Mapping[str, float | str] = field(default_factory=dict)
    # The time marks targets that were deployed together; a rollback goes back with all of them.
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))


@runtime_checkable
class Export(Protocol):
    """A system's EXPORT, in its export.py."""

    @property
    def formats(self) -> Sequence[str]: ...

    def open(
        self, weights: Path, data: Path | None, tick: ReportProgress, *, architecture: str = ""
    ) -> Deployment:
        """Read `weights`, with `architecture` if they do not name one, and the examples to verify with."""

    def find(self, checkpoint: str) -> Path:
        """Return the path of published weights, from a folder or by a public name; raise GourmetError."""


@dataclass(frozen=True)
class Calibrated:
    """A threshold for relying on a model's answers, and the measurements at it."""

    calibration: Mapping[str, float | str]
    facts: Mapping[str, Any]  # what the manifest says of it
    lines: Sequence[str]


@runtime_checkable
class Calibrating(Export, Protocol):
    """An export that can calibrate a deployed version."""

    def calibrated(self, version: Path, data: Path, tick: ReportProgress) -> Calibrated:
        """Calibrate on a version of the default model, by its answers to the examples of `data`."""


@runtime_checkable
class Quantizing(Export, Protocol):
    """An export that rounds weights to eight bits by default."""

    def in_fp32(self) -> Export: ...


Served = TypeVar("Served")


def comparison_of(
    version: Path,
    weights_sha256: str,
    open_served: Callable[[], Served],
    measure: Callable[[Served], Iterable[Measure]],
    lack: str,
) -> Comparison:
    """Compare a candidate with these weights with a served version, unless that has the same weights.

    If `open_served` fails, there is nothing to compare with. An error of `measure` is not caught. `lack` says
    why there is nothing to compare on, for when it measures nothing.
    """
    note, measures = "", list[Measure]()
    if weights_of(version) == weights_sha256:
        note = f"version {version.name} has the same weights"
    else:
        try:
            served = open_served()
        except Exception as exc:  # a runtime raises its own exceptions on a file that it cannot open
            reason = error_summary(exc)[:80]
            note = f"accuracy was not compared: version {version.name} cannot be opened here ({reason})"
        else:
            measures = list(measure(served))
            note = "" if measures else f"accuracy was not compared: {lack}"
    return Comparison(version.parent.name, version.name, measures, note)
