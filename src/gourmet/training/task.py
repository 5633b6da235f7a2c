"""What the engine asks of a system: a recipe, and a network with its examples, its loss and its measures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gourmet.training.recipe import Phase, Recipe

if TYPE_CHECKING:  # a system's folder can be looked over without torch
    import torch
    from torch import nn


class Tick(Protocol):
    """Is told how far a stage is, from 0 to 1."""

    def __call__(self, share: float, words: str = "", /) -> None: ...


class TrainingTask(Protocol):
    """A network that learns, and what it learns from."""

    network: nn.Module
    about: dict[str, Any]  # says which network this is; written into every file of weights

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """The numbers of one epoch's examples, in the order in which they are shown."""

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        """The network's mean loss on these examples, shown as `phase` says."""

    def measure(self, network: nn.Module) -> dict[str, float]:
        """Measures of `network` on examples held out; of two networks the one with more `score` is kept.

        May adapt the statistics (not the weights) of `network` to the conditions of serving.
        """


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
