"""The training loop: epochs of steps, an average of the weights, and a checkpoint at any moment."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch
from pydantic import TypeAdapter
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gourmet.errors import GourmetError, UsageError
from gourmet.progress import ReportProgress
from gourmet.served import malloc
from gourmet.served.files import written_aside
from gourmet.served.reading import error_summary
from gourmet.served.signals import first_stop
from gourmet.training.files import save_tensors
from gourmet.training.muon import optimizers
from gourmet.training.run import write_log
from gourmet.training.task import Recipe, TrainingTask

CHECKPOINT: Final = "checkpoint.pt"
BEST: Final = "best.safetensors"
LAST: Final = "last.safetensors"


@dataclass
class Position:
    """The position of a run. It also seeds the random numbers of each step, so no other state is needed."""

    epoch: int = 0
    seen: int = 0  # examples of this epoch so far
    steps: int = 0
    loss_sum: float = 0.0  # over the examples of this epoch
    seconds: float = 0.0


def fit(
    task: TrainingTask,
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    tick: ReportProgress = lambda share, words="": None,
    checkpoint_every_s: float = 60.0,
    on_epoch: Callable[[Mapping[str, Any]], None] = lambda epoch: None,
) -> list[dict[str, Any]]:
    """Train with `recipe` into the folder `out`, from the beginning or from the last checkpoint.

    Return the log, a dictionary for each epoch; `on_epoch` is called with each at its end.
    """
    run = _Run(task, recipe, out, tick)
    if resume:
        run.restore()
    malloc.use(malloc.TRAINING)
    saved_at = time.monotonic()
    with first_stop() as stop:
        while run.position.epoch < recipe.epochs:
            order = task.order(run.generator(-1))
            while run.position.seen < len(order):
                run.step(order)
                if stop.is_set():
                    run.save()
                    raise GourmetError(f"stopped; the checkpoint is in {out}: go on with --resume")
                if time.monotonic() - saved_at > checkpoint_every_s:
                    run.save()
                    saved_at = time.monotonic()
            run.close_epoch(len(order))
            on_epoch(run.log[-1])
    return run.log


class _Run:
    def __init__(self, task: TrainingTask, recipe: Recipe, out: Path, tick: ReportProgress) -> None:
        self.task, self.recipe, self.out, self.tick = task, recipe, out, tick
        self.position = Position()
        self.optimizers = optimizers(task.network, recipe.momentum, recipe.weight_decay)
        # Statistics of batch normalisation are copied, not averaged: a task's `measure` computes them again.
        follow = get_ema_multi_avg_fn(recipe.ema_decay)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(task.network, multi_avg_fn=follow).eval()
        self.log: list[dict[str, Any]] = []
        self.phase = recipe.phases[0]
        self.identity = {**task.about, "seed": recipe.seed}

    def step(self, order: torch.Tensor) -> None:
        """Train on the next examples of an epoch."""
        started = time.monotonic()
        position, recipe = self.position, self.recipe
        progress = self._progress(len(order))
        self.phase = phase = recipe.phase_at(progress)
        examples = order[position.seen : position.seen + phase.batch]
        generator = self.generator(position.seen)
        torch.manual_seed(generator.initial_seed())  # for dropout, which takes no generator
        self.task.network.train()
        loss = self.task.loss(examples, phase, generator)
        self.task.network.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate_at(progress) * group["share"]
            optimizer.step()
        value = loss.item()
        if value != value:
            raise GourmetError(
                f"the loss is not a number at step {position.steps} of epoch {position.epoch + 1}: "
                f"lower the learning rate (--rate, now {recipe.peak_rate})"
            )
        position.seen += len(examples)
        position.steps += 1
        position.loss_sum += value * len(examples)
        self.average.update_parameters(self.task.network)
        seconds = time.monotonic() - started
        position.seconds += seconds
        self.tick(
            1.0 - recipe.work(self._progress(len(order))) / recipe.work(0.0),
            f"epoch {position.epoch + 1}/{recipe.epochs} · {phase.name and f'{phase.name} · '}"
            f"loss {value:.3f} · {len(examples) / seconds:.0f}/s",
        )

    def close_epoch(self, examples: int) -> None:
        """Measure, keep the better weights, and log."""
        position = self.position
        # The average is better while the rate is high and steps jump; the last step is better in short runs.
        both = {"average": self.average.module, "last step": copy.deepcopy(self.task.network).eval()}
        networks = {name: self.task.module_to_save(network) for name, network in both.items()}
        measured = {name: self.task.measure(network) for name, network in networks.items()}
        kept = max(measured, key=lambda name: measured[name]["score"])
        network, measures = networks[kept], measured[kept]
        best = max((line["score"] for line in self.log), default=float("-inf"))
        about = {**self.task.about, "epoch": position.epoch + 1, "kept": kept, "measures": measures}
        save_tensors(self.out / LAST, network.state_dict(), about)
        if measures["score"] >= best:
            save_tensors(self.out / BEST, network.state_dict(), about)
        self.log.append(
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
        write_log(self.out, self.log)
        self.position = Position(epoch=position.epoch + 1, steps=position.steps, seconds=position.seconds)
        self.save()

    def _progress(self, examples: int) -> float:
        return (self.position.epoch + self.position.seen / examples) / self.recipe.epochs

    def generator(self, seen: int) -> torch.Generator:
        """Return random numbers that depend only on the seed and the position in the run."""
        return torch.Generator().manual_seed(
            hash((self.recipe.seed, self.position.epoch, seen)) & (2**63 - 1)
        )

    def save(self) -> None:
        """Write the checkpoint: all state of the next step."""
        state = {
            "identity": self.identity,
            "position": vars(self.position),
            "log": self.log,
            "network": self.task.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        with written_aside(self.out / CHECKPOINT) as aside:
            torch.save(state, aside)

    def restore(self) -> None:
        """Load the checkpoint, if it is of a run with the same network."""
        path = self.out / CHECKPOINT
        if not path.is_file():
            raise UsageError(f"{path} does not exist: train without --resume, or name another --out")
        try:
            self._go_back_to(torch.load(path, map_location="cpu", weights_only=True), path)
        except GourmetError:
            raise
        except UnpicklingError as exc:  # torch's message advises to run the code
            raise UsageError(
                f"{path} is not a checkpoint of ours, and its code is not run: train without --resume"
            ) from exc
        except Exception as exc:  # torch raises many types for bad files
            raise UsageError(
                f"{path} cannot be read as the checkpoint of a run ({error_summary(exc)}): train without "
                "--resume"
            ) from exc

    def _go_back_to(self, state: dict[str, Any], path: Path) -> None:
        for key, value in self.identity.items():
            if (was := state["identity"].get(key)) != value:
                raise UsageError(
                    f"{path} is a run with {key} {was!r}, not {value!r}: "
                    "resume with what it was started with, or choose another --out"
                )
        self.task.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.position = TypeAdapter(Position).validate_python(state["position"])
        self.log = list(map(dict, state["log"]))
