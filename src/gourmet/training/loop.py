"""The loop: epochs of steps, an average that follows, a checkpoint at any moment."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.runtime import malloc
from gourmet.runtime.signals import first_stop
from gourmet.training import checkpoint
from gourmet.training.average import MovingAverage
from gourmet.training.checkpoint import Position
from gourmet.training.epoch_log import EpochLog
from gourmet.training.files import save_tensors
from gourmet.training.muon import Muon
from gourmet.training.recipe import Recipe
from gourmet.training.task import TrainingTask

CHECKPOINT: Final = "checkpoint.safetensors"
BEST: Final = "best.safetensors"
LAST: Final = "last.safetensors"

_CHECKPOINT_EVERY_S: Final = 60.0


class Diverged(GourmetError):
    """The loss is not a number any more."""


@dataclass(frozen=True)
class Moment:
    """What a watcher of the run is told after every step."""

    epoch: int
    epochs: int
    progress: float  # the share of the work that is done, of which large examples are more
    loss: float
    phase: str
    examples_per_s: float


Watcher = Callable[[Moment], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `finished`, or interrupted with a checkpoint to go on from."""

    finished: bool
    log: list[dict[str, Any]]


def fit(
    task: TrainingTask,
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    watch: Watcher = lambda moment: None,
    checkpoint_every_s: float = _CHECKPOINT_EVERY_S,
) -> Outcome:
    """Run `recipe` into the folder `out`, from its beginning or from where the last run was stopped."""
    return _Run(task, recipe, out, watch, checkpoint_every_s).go(resume)


class _Run:
    def __init__(
        self, task: TrainingTask, recipe: Recipe, out: Path, watch: Watcher, checkpoint_every_s: float
    ) -> None:
        self.task, self.recipe, self.out, self.watch = task, recipe, out, watch
        self.checkpoint_every_s = checkpoint_every_s
        self.position = Position()
        self.optimizer = Muon(task.network, recipe.peak_rate, recipe.momentum, recipe.weight_decay)
        self.average = MovingAverage(task.network, recipe.ema_decay)
        self.log = EpochLog(out)
        self.phase = recipe.phases[0]
        self.identity = {**task.about, "seed": recipe.seed}

    def go(self, resume: bool) -> Outcome:
        if resume:
            self.position = checkpoint.restore(
                self.out / CHECKPOINT, self.task.network, self.average, self.optimizer, self.identity
            )
        malloc.use(malloc.TRAINING)
        self.log.open(keep=self.position.epoch)
        with first_stop() as asked_to_stop:
            while self.position.epoch < self.recipe.epochs:
                if not self._epoch(asked_to_stop):
                    self._save()
                    return Outcome(False, self.log.lines)
        return Outcome(True, self.log.lines)

    def _epoch(self, asked_to_stop: threading.Event) -> bool:
        """Run the rest of an epoch; False if asked to stop in the middle."""
        position = self.position
        order = self.task.order(self._generator(position.epoch, -1))
        saved_at = time.monotonic()
        while position.seen < len(order):
            self._step(order)
            if asked_to_stop.is_set():
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
        self.phase = phase
        examples = order[position.seen : position.seen + phase.batch]
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate_at(progress)
        generator = self._generator(position.epoch, position.seen)
        torch.manual_seed(generator.initial_seed())  # for dropout, which takes no generator
        self.task.network.train()
        loss = self.task.loss(examples, phase, generator)
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
        self.average.follow(self.task.network, position.steps)
        seconds = time.monotonic() - started
        position.seconds += seconds
        done = 1.0 - recipe.work(self._progress(len(order))) / recipe.work(0.0)
        self.watch(Moment(position.epoch, recipe.epochs, done, value, phase.name, len(examples) / seconds))

    def _close_epoch(self, examples: int) -> None:
        position = self.position
        kept, network, measures = self._better()
        best = max((line["score"] for line in self.log.lines), default=float("-inf"))
        about = {**self.task.about, "epoch": position.epoch + 1, "kept": kept, "measures": measures}
        save_tensors(self.out / LAST, network.state_dict(), about)
        if measures["score"] >= best:
            save_tensors(self.out / BEST, network.state_dict(), about)
        self.log.add(
            {
                "epoch": position.epoch + 1,
                "phase": self.phase.name,
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
            "last step": copy.deepcopy(self.task.network).eval(),
        }
        measured = {name: self.task.measure(network) for name, network in candidates.items()}
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
            self.out / CHECKPOINT, self.task.network, self.average, self.optimizer, self.position, about
        )
