"""A check of a served model of any task: what is wanted, what comes of it, and who does it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from gourmet.contracts import Task
from gourmet.errors import UsageError
from gourmet.serving.client import describe_model, triton
from gourmet.systems import registry
from gourmet.tasks.furniture import Stage

# Each has a function `check`, which is a Checker.
_MODULES: Final[dict[Task, str]] = {
    "classification": "gourmet.tasks.classification.checking.check",
    "generation": "gourmet.tasks.generation.check",
}


@dataclass(frozen=True)
class RequestOptions:
    """How to ask."""

    in_flight: int = 16
    batch: int = 16
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Wanted:
    """What to check, and how; what a task has no use for it passes over."""

    model: str
    data: Path | None
    repository: Path  # where the served model's manifest lies
    url: str = "localhost:8000"
    part: str | None = None
    limit: int | None = None
    missing_classes: bool = False
    options: RequestOptions = field(default_factory=RequestOptions)
    weights: Path | None = None  # of the eager network
    runs: Path = Path("runs")  # where the weights that the manifest names may lie
    min_top1: float | None = None


class CheckReport(Protocol):
    """What a check found."""

    @property
    def stopped(self) -> bool: ...

    def faults(self) -> list[str]:
        """Why the check fails, a sentence each; empty if it passes."""

    def progress(self) -> str:
        """How much of it was done, for a check that was stopped."""

    def as_dict(self) -> dict[str, Any]: ...

    def summary(self) -> str:
        """For a terminal."""

    def page(self) -> str:
        """As HTML."""


Stopping = Callable[[], bool]
Checker = Callable[[Wanted, Stage, Stopping], CheckReport]


def checker(url: str, model: str) -> Checker:
    """What checks models of the task that `model` is for."""
    with triton(url) as client:
        info = describe_model(client, model)
    if not info.system:
        raise UsageError(
            f"the config of {model!r} does not say which system it belongs to: give it "
            f'parameters {{ key: "system" value: {{ string_value: "…" }} }}, '
            f"one of {', '.join(registry.names())}"
        )
    found: Checker = importlib.import_module(_MODULES[registry.load(info.system).task]).check
    return found
