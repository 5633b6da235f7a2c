"""The loop: epochs of steps, an average that follows, a checkpoint at any moment."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.training import checkpoint
from gourmet.training.average import MovingAverage
from gourmet.training.checkpoint import Position
from gourmet.training.files import save_tensors
from gourmet.training.interrupts import Interrupts
from gourmet.training.journal import Journal
from gourmet.training.memory import keep_freed_blocks
from gourmet.training.muon import Muon
from gourmet.training.pace import Pace
from gourmet.training.recipe import Recipe

CHECKPOINT: Final = "checkpoint.safetensors"
BEST: Final = "best.safetensors"
LAST: Final = "last.safetensors"

_CHECKPOINT_EVERY_S: Final = 60.0


class Diverged(GourmetError):
    """The loss is no number any more."""


class Trainee(Protocol):
    """What a system hands to the engine."""

    network: nn.Module
    about: dict[str, Any]  # says which network this is; written into every file of weights

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """The numbers of one epoch's examples, in the order in which they are shown."""

    def loss(self, examples: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
        """The network's mean loss on these examples, shown `size` pixels wide."""

    def measure(self, network: nn.Module) -> dict[str, float]:
        """Measures of `network` on photos held out, `score` (more is better) among them.

        May adapt the statistics (not the weights) of `network` to the conditions of serving.
        """


@dataclass(frozen=True)
class Moment:
    """What a watcher of the run is told after every step."""

    epoch: int
    epochs: int
    progress: float
    loss: float
    size: int
    examples_per_s: float
    remaining_s: float


Watcher = Callable[[Moment], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `finished`, or interrupted with a checkpoint to go on from."""

    finished: bool
    journal: list[dict[str, Any]]


def fit(
    trainee: Trainee,
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    watch: Watcher = lambda moment: None,
    checkpoint_every_s: float = _CHECKPOINT_EVERY_S,
) -> Outcome:
    """Run `recipe` into the folder `out`, from its beginning or from where the last run was stopped."""
    return _Run(trainee, recipe, out, watch, checkpoint_every_s).go(resume)


class _Run:
    def __init__(
        self, trainee: Trainee, recipe: Recipe, out: Path, watch: Watcher, checkpoint_every_s: float
    ) -> None:
        self.trainee, self.recipe, self.out, self.watch = trainee, recipe, out, watch
        self.checkpoint_every_s = checkpoint_every_s
        self.position = Position()
        self.optimizer = Muon(trainee.network, recipe.peak_rate, recipe.momentum, recipe.weight_decay)
        self.average = MovingAverage(trainee.network, recipe.ema_decay)
        self.journal = Journal(out)
        self.pace = Pace()
        self.size = recipe.phases[0].size
        self.identity = {**trainee.about, "seed": recipe.seed}

    def go(self, resume: bool) -> Outcome:
        if resume:
            self.position = checkpoint.restore(
                self.out / CHECKPOINT, self.trainee.network, self.average, self.optimizer, self.identity
            )
        keep_freed_blocks()
        self.journal.open(keep=self.position.epoch)
        with Interrupts() as interrupts:
            while self.position.epoch < self.recipe.epochs:
                if not self._epoch(interrupts):
                    self._save()
                    return Outcome(False, self.journal.lines)
        return Outcome(True, self.journal.lines)

    def _epoch(self, interrupts: Interrupts) -> bool:
        """Run the rest of an epoch; False if asked to stop in the middle."""
        position = self.position
        order = self.trainee.order(self._generator(position.epoch, -1))
        saved_at = time.monotonic()
        while position.seen < len(order):
            self._step(order)
            if interrupts.asked:
                return False
            if time.monotonic() - saved_at > self.checkpoint_every_s:
                self._save()
                saved_at = time.monotonic()
        self._close_epoch(len(order))
        return True

    def _step(self, order: torch.Tensor) -> None:
        started = time.monotonic()
        position, recipe = self.position, self.recipe
        progress = self._progress(len(order))
        phase = recipe.phase_at(progress)
        self.size = phase.size
        examples = order[position.seen : position.seen + phase.batch]
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate_at(progress)
        generator = self._generator(position.epoch, position.seen)
        torch.manual_seed(generator.initial_seed())  # for dropout, which takes no generator
        self.trainee.network.train()
        loss = self.trainee.loss(examples, phase.size, generator)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        value = loss.item()
        if value != value:
            raise Diverged(
                f"the loss is not a number at step {position.steps} of epoch {position.epoch + 1}: "
                f"lower the learning rate (--rate, now {recipe.peak_rate})"
            )
        position.seen += len(examples)
        position.steps += 1
        position.loss_sum += value * len(examples)
        self.average.follow(self.trainee.network, position.steps)
        work = len(examples) * phase.size**2
        seconds = self.pace.add(time.monotonic() - started, work)
        position.seconds += seconds
        self._tell(value, phase.size, len(order))

    def _tell(self, loss: float, size: int, examples: int) -> None:
        progress = self._progress(examples)
        remaining = self.pace.seconds(self.recipe.work(progress) * examples)
        pace = 1.0 / self.pace.seconds(size**2)
        self.watch(Moment(self.position.epoch, self.recipe.epochs, progress, loss, size, pace, remaining))

    def _close_epoch(self, examples: int) -> None:
        position = self.position
        kept, network, measures = self._better()
        best = max((line["score"] for line in self.journal.lines), default=float("-inf"))
        about = {**self.trainee.about, "epoch": position.epoch + 1, "kept": kept, "measures": measures}
        save_tensors(self.out / LAST, network.state_dict(), about)
        if measures["score"] >= best:
            save_tensors(self.out / BEST, network.state_dict(), about)
        self.journal.add(
            {
                "epoch": position.epoch + 1,
                "size": self.size,
                "rate": self.recipe.rate_at(self._progress(examples)),
                "loss": position.loss_sum / examples,
                "seconds": round(position.seconds, 1),
                "kept": kept,
                **measures,
            }
        )
        self.position = Position(epoch=position.epoch + 1, steps=position.steps, seconds=position.seconds)
        self._save()

    def _better(self) -> tuple[str, nn.Module, dict[str, float]]:
        """The average or the last step's network, whichever measures better.

        While the rate is high the average is ahead of the steps that jump around it; in a short run
        it is behind where they end.
        """
        candidates = {
            "average": self.average.network,
            "last step": copy.deepcopy(self.trainee.network).eval(),
        }
        measured = {name: self.trainee.measure(network) for name, network in candidates.items()}
        kept = max(measured, key=lambda name: measured[name]["score"])
        return kept, candidates[kept], measured[kept]

    def _progress(self, examples: int) -> float:
        return (self.position.epoch + self.position.seen / examples) / self.recipe.epochs

    def _generator(self, epoch: int, seen: int) -> torch.Generator:
        """Random numbers that depend on nothing but the seed and the position in the run."""
        return torch.Generator().manual_seed(hash((self.recipe.seed, epoch, seen)) & (2**63 - 1))

    def _save(self) -> None:
        about = {**self.identity, "recipe": self.recipe.as_dict()}
        checkpoint.save(
            self.out / CHECKPOINT, self.trainee.network, self.average, self.optimizer, self.position, about
        )
