"""What the engine asks of a system: a recipe, and a network with its examples, its loss and its measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from pydantic import Field, FiniteFloat, PositiveInt, TypeAdapter

from gourmet.errors import UsageError
from gourmet.runtime.reading import in_short

if TYPE_CHECKING:  # a system's folder can be looked over without torch
    import torch
    from torch import nn


@dataclass(frozen=True)
class Phase:
    """What a run shows from `start`, a share of the whole of it, on; the first starts at 0."""

    start: Annotated[float, Field(ge=0, lt=1)]
    batch: PositiveInt
    work: Annotated[FiniteFloat, Field(gt=0)] = (
        1.0  # that an example costs, in any unit that is the same for all phases
    )
    size: int = 0  # of an example, as its task counts: pixels of width, or tokens
    name: str = ""  # for logs and curves


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run besides the data and the network."""

    epochs: PositiveInt
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    peak_rate: Annotated[FiniteFloat, Field(gt=0)]
    warmup: Annotated[float, Field(gt=0, lt=1)] = 0.15
    momentum: FiniteFloat = 0.95
    weight_decay: FiniteFloat = 0.01
    ema_decay: FiniteFloat = 0.99
    seed: int = 0

    def phase_at(self, progress: float) -> Phase:
        """The phase a run is in that has `progress` (0 to 1) behind it."""
        return [phase for phase in self.phases if phase.start <= progress][-1]

    def rate_at(self, progress: float) -> float:
        """One cycle: the learning rate rises over the warm-up and falls in a line to nothing.

        It falls with the work that is left and not with the examples: a last phase of few and costly
        examples could not adapt to them with a rate of next to nothing. A small batch takes smaller
        steps, by the root, as its gradient's noise goes.
        """
        left = self.work(progress) / self.work(self.warmup)
        rise = max(progress / self.warmup, 0.02)
        share = self.phase_at(progress).batch / self.phases[0].batch
        return math.sqrt(share) * self.peak_rate * min(rise, left, 1.0)

    def work(self, since: float) -> float:
        """Work from `since` to the end of the run, in epochs of examples that cost 1."""
        ends = [phase.start for phase in self.phases[1:]] + [1.0]
        left = [max(0.0, end - max(since, phase.start)) for phase, end in zip(self.phases, ends, strict=True)]
        return self.epochs * sum(phase.work * share for phase, share in zip(self.phases, left, strict=True))

    @classmethod
    def from_dict(cls, fields: dict[str, Any], *, epochs: int | None, peak_rate: float | None) -> Recipe:
        """Back from `dataclasses.asdict`, with other epochs and another rate if they are given."""
        given = {"epochs": epochs, "peak_rate": peak_rate}
        try:
            return TypeAdapter(cls).validate_python(
                fields | {key: value for key, value in given.items() if value}
            )
        except ValueError as exc:
            raise UsageError(
                f"the run to go on with has no recipe that can be used: {in_short(exc)}"
            ) from exc


class Tick(Protocol):
    """Is told how far a stage is, from 0 to 1."""

    def __call__(self, share: float, words: str = "", /) -> None: ...


class TrainingTask(Protocol):
    """A network that learns, and what it learns from."""

    network: nn.Module
    about: dict[str, Any]  # says which network this is; written into every file of weights
    files: dict[str, bytes]  # what else lies beside its weights, by name

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """The numbers of one epoch's examples, in the order in which they are shown."""

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        """The network's mean loss on these examples, shown as `phase` says."""

    def kept(self, network: nn.Module) -> nn.Module:
        """What is measured and saved of `network`: in most tasks itself."""

    def measure(self, network: nn.Module) -> dict[str, float]:
        """Measures of `network` on examples held out; of two networks the one with more `score` is kept.

        May adapt the statistics (not the weights) of `network` to the conditions of serving.
        """


@runtime_checkable
class Configurable(Protocol):
    """A TRAINING some of whose choices can be changed by name."""

    def configured(self, overrides: Sequence[str]) -> Training:
        """With these `name=value`; raise UsageError for what there is not."""


@runtime_checkable
class Solving(Protocol):
    """A TRAINING without epochs, which finds its network's weights at once."""

    def solve(self, data: Path, out: Path, *, limit: int | None, seed: int, tick: Tick) -> str:
        """Write the weights, what was measured of them and a log to `out`; returns lines for a terminal."""


@runtime_checkable
class Rehearsing(Protocol):
    """A TRAINING of networks that may go on learning without the examples that they were trained on."""

    def rehearse(self, network: nn.Module, data: Path, weights: Path, tick: Tick) -> Path:
        """Keep beside `weights`, which are those of `network`, what that takes; returns where."""


@runtime_checkable
class Training(Protocol):
    """A system's TRAINING, in its train.py."""

    def recipe(
        self, *, epochs: int | None, rate: float | None, seed: int, device: str, pretrained: bool
    ) -> Recipe:
        """How its runs go; None leaves a choice to the system."""

    def prepare(
        self, data: Path, *, limit: int | None, seed: int, device: str, pretrained: bool, tick: Tick
    ) -> TrainingTask:
        """Read the examples and build the network for them, its first weights drawn with `seed`."""

    def bundled_data(self) -> tuple[Path, str] | None:
        """Examples that need no download, and what they are; None where there are none."""
