"""Protocols between the engine of deployment and a task: models that build and verify themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gourmet.client.model_config import Config
from gourmet.deploying.comparison import Comparison
from gourmet.reports.table import columns
from gourmet.training.task import Tick


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


@dataclass(frozen=True)
class Target:
    """A served model that can be made of some weights."""

    model: str  # its folder in the model repository
    file: str  # what is made, in a version's folder
    build: Callable[[Path], dict[str, Any]]  # writes the file; returns what the manifest says of its form
    verify: Callable[[Path], Sequence[Check]]  # compares what was built with what it was made of
    # Of a model that the repository does not have yet; None where it has to be there.
    config: Config | None = None
    labels: Sequence[str] = ()
    # Config and labels are generated with each version, which takes nothing over from another.
    replaces: bool = False
    # Inputs and outputs whose shape follows from the weights, as the model's config has to say it.
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # The network in further forms, files of the same version: one that does not pass is left out.
    also: Sequence[Target] = ()
    # Compares the candidate with a version that serves; None where nothing says how.
    compare: Callable[[Path, Tick], Comparison] | None = None


@dataclass(frozen=True)
class Deployment:
    """Weights, ready to be deployed in each of their system's formats."""

    targets: Mapping[str, Target]  # by format
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the manifest says of the weights
    # Numbers that go into the model's config with a version, and change back with a rollback.
    calibration: Mapping[str, float | str] = field(default_factory=dict)
    # Tells what was deployed together, and is gone back from together.
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))


@runtime_checkable
class Export(Protocol):
    """A system's EXPORT, in its export.py."""

    @property
    def formats(self) -> Sequence[str]: ...

    def open(self, weights: Path, data: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        """Read `weights`, of `architecture` where they do not say it, and the examples to verify with."""

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

    def calibrated(self, version: Path, data: Path, tick: Tick) -> Calibrated:
        """Calibrate on a version of the default model, by its answers to the examples of `data`."""


@runtime_checkable
class Quantizing(Export, Protocol):
    """An export that rounds weights to eight bits by default."""

    def in_fp32(self) -> Export: ...
