"""The protocols between engine and system: a recipe, and a network with its examples, loss and measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from pydantic import Field, FiniteFloat, PositiveInt, TypeAdapter

from gourmet.errors import UsageError
from gourmet.progress import ReportProgress
from gourmet.served.reading import error_summary

if TYPE_CHECKING:  # so that systems can be listed without torch
    import torch
    from torch import nn


@dataclass(frozen=True)
class Phase:
    """A phase of a run. `start` is a share of the run; the first phase starts at 0."""

    start: Annotated[float, Field(ge=0, lt=1)]
    batch: PositiveInt
    # The cost of an example, in any unit that is the same for all phases.
    work: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    size: int = 0  # the size of an example: pixels of width, or tokens
    name: str = ""  # for logs and curves


@dataclass(frozen=True)
class Recipe:
    """All settings of a run except the data and the network."""

    epochs: PositiveInt
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    peak_rate: Annotated[FiniteFloat, Field(gt=0)]
    warmup: Annotated[float, Field(gt=0, lt=1)] = 0.15
    momentum: FiniteFloat = 0.95
    weight_decay: FiniteFloat = 0.01
    ema_decay: FiniteFloat = 0.99
    seed: int = 0

    def phase_at(self, progress: float) -> Phase:
        """Return the phase of a run at `progress` (0 to 1)."""
        return [phase for phase in self.phases if phase.start <= progress][-1]

    def rate_at(self, progress: float) -> float:
        """Return the learning rate: it rises during the warm-up and then falls linearly to 0.

        It falls with the remaining work, not with the examples, so that a last phase of few and expensive
        examples still has a useful rate. It is proportional to the root of the batch size, as the gradient's
        noise is.
        """
        left = self.work(progress) / self.work(self.warmup)
        rise = max(progress / self.warmup, 0.02)
        share = self.phase_at(progress).batch / self.phases[0].batch
        return math.sqrt(share) * self.peak_rate * min(rise, left, 1.0)

    def work(self, since: float) -> float:
        """Return the work from `since` to the end of the run, in epochs of examples that cost 1."""
        ends = [phase.start for phase in self.phases[1:]] + [1.0]
        left = [max(0.0, end - max(since, phase.start)) for phase, end in zip(self.phases, ends, strict=True)]
        return self.epochs * sum(phase.work * share for phase, share in zip(self.phases, left, strict=True))

    @classmethod
    def from_dict(cls, fields: dict[str, Any], *, epochs: int | None, peak_rate: float | None) -> Recipe:
        """Create a recipe from the result of `dataclasses.asdict`, with other epochs and rate unless None."""
        changes = {"epochs": epochs, "peak_rate": peak_rate}
        try:
            return TypeAdapter(cls).validate_python(
                fields | {key: value for key, value in changes.items() if value}
            )
        except ValueError as exc:
            raise UsageError(
                f"the run to resume has no recipe that can be used: {error_summary(exc)}"
            ) from exc


@dataclass(frozen=True)
class TrainOptions:
    """The options of a training; None leaves a value to the system."""

    out: Path = Path("runs")
    data: Path | None = None
    overrides: Sequence[str] = ()
    epochs: int | None = None
    rate: float | None = None
    seed: int = 0
    limit: int | None = None
    resume: bool = False
    init: Path | None = None
    pretrained: bool = False
    mlflow: bool = False
    device: str = "cpu"  # or cuda, or auto
    threads: int | None = None


class TrainingTask(Protocol):
    """A network and its training examples."""

    network: nn.Module
    about: dict[str, Any]  # identifies the network; written into every file of weights
    files: dict[str, bytes]  # other files to write beside the weights, by name

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """Return the indices of an epoch's examples, in their order."""

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        """Return the network's mean loss on these examples, with the settings of `phase`."""

    def module_to_save(self, network: nn.Module) -> nn.Module:
        """Return the module to measure and save: in most tasks `network` itself."""

    def measure(self, network: nn.Module) -> dict[str, float]:
        """Measure `network` on held-out examples. Of two networks, the one with the higher `score` is kept.

        The call may adapt the statistics (not the weights) of `network` to the conditions of serving.
        """


@runtime_checkable
class Configurable(Protocol):
    """A TRAINING with settings that a user may change."""

    def configured(self, overrides: Sequence[str]) -> Training:
        """Return it with settings from `name=value`; raise UsageError for an unknown one."""


@runtime_checkable
class Solving(Protocol):
    """A TRAINING without epochs, which computes its network's weights directly."""

    def solve(self, data: Path, options: TrainOptions, tick: ReportProgress) -> str:
        """Write the weights, their measures and a log to `options.out`; return lines for a terminal."""


@runtime_checkable
class Rehearsing(Protocol):
    """A TRAINING of networks that can learn more later without their original examples."""

    def rehearse(self, network: nn.Module, data: Path, weights: Path, tick: ReportProgress) -> Path:
        """Write the file that `gourmet learn-more` needs beside the network's `weights`; return its path."""


@runtime_checkable
class Training(Protocol):
    """A system's TRAINING, in its train.py."""

    def recipe(self, options: TrainOptions) -> Recipe: ...

    def prepare(self, data: Path, options: TrainOptions, tick: ReportProgress) -> TrainingTask:
        """Read the examples and build the network, with its first weights drawn from the seed."""

    def bundled_data(self) -> tuple[Path, str] | None:
        """Return the path of examples that need no download, and their description; None without any."""
