"""Train any system: start or resume a run, and keep its result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch

from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation.system_parts import SystemParts
from gourmet.progress import ProgressBar
from gourmet.served.files import written_aside
from gourmet.training import mlflow_log
from gourmet.training.files import load_tensors, put_tensors
from gourmet.training.loop import CHECKPOINT, LAST, fit
from gourmet.training.run import read_run, write_run
from gourmet.training.task import Configurable, Recipe, Rehearsing, Solving, TrainOptions

_MLFLOW: Final = "mlflow_run"


def train(
    system: str,
    parts: SystemParts,
    options: TrainOptions,
    progress_bar: ProgressBar,
    say: Callable[[str], None],
) -> str:
    """Train a system's network, and return the result in a sentence."""
    if options.init and (options.resume or options.pretrained):
        raise GourmetError("--init says what to begin with, and so does --resume or --pretrained: give one")
    if options.threads:
        torch.set_num_threads(options.threads)
    if isinstance(parts.training, Solving):
        return _solve(system, parts, options, progress_bar)
    out, training = options.out, parts.training
    if not options.resume and (out / CHECKPOINT).exists():
        raise GourmetError(f"{out} holds a run already: go on with it by --resume, or name another --out")
    about_run: dict[str, Any] = (
        read_run(out) if options.resume else {"init": options.init and str(options.init)}
    )
    if overrides := (*about_run.get("overrides", ()), *options.overrides):
        if not isinstance(training, Configurable):
            raise UsageError(f"{system} has no configuration to change: leave out {' '.join(overrides)}")
        training = training.configured(overrides)
        about_run["overrides"] = overrides
    if options.device == "auto":
        options = replace(options, device="cuda" if torch.cuda.is_available() else "cpu")
    if options.resume:
        recipe = Recipe.from_dict(about_run["recipe"], epochs=options.epochs, peak_rate=options.rate)
        options = replace(options, seed=recipe.seed)
        data = options.data or Path(about_run["data"])
    else:
        recipe = training.recipe(options)
        data = _data(system, parts, options, say)
    with progress_bar("reading") as tick:
        task = training.prepare(data, options, tick)
    if options.init:
        put_tensors(task.network, load_tensors(options.init)[0], options.init)
    for name, content in task.files.items():
        with written_aside(out / name) as aside:
            aside.write_bytes(content)
    facts = {**about_run, "system": system, "data": str(data.resolve()), "recipe": asdict(recipe)}
    parameters = {**task.about, **facts["recipe"], "data": data.name}
    with contextlib.ExitStack() as telling:
        callbacks: dict[str, Any] = {}
        if options.mlflow:
            facts[_MLFLOW], callbacks["on_epoch"] = telling.enter_context(
                mlflow_log.logged(out, system, parameters, about_run.get(_MLFLOW, ""))
            )
        write_run(out, facts)
        with progress_bar("training") as tick:
            log = fit(task, recipe, out, resume=options.resume, tick=tick, **callbacks)
    if isinstance(training, Rehearsing):
        rehearse(parts, out / LAST, data, progress_bar)
    last = log[-1]
    epochs = f"{last['epoch']} epoch{'s' * (last['epoch'] != 1)}"
    return f"{out / LAST}: score {last['score']:.3f} after {epochs}"


def rehearse(parts: SystemParts, weights: Path, data: Path | None, progress_bar: ProgressBar) -> str:
    """Write the set of activations that `gourmet learn-more` rehearses with these weights."""
    if not isinstance(parts.training, Rehearsing) or data is None:
        raise UsageError("--rehearse takes a system that learns from photos, and their folder with --data")
    with progress_bar("rehearsing") as tick:
        return str(parts.training.rehearse(parts.evaluation.load(weights, "")[0], data, weights, tick))


def _data(system: str, parts: SystemParts, options: TrainOptions, say: Callable[[str], None]) -> Path:
    if options.data is not None:
        return options.data
    if (bundled := parts.training.bundled_data()) is None:
        raise UsageError(f"{system} has no bundled data: name a folder or file to learn from with --data")
    say(f"no --data given: learning from {bundled[1]}")
    return bundled[0]


def _solve(system: str, parts: SystemParts, options: TrainOptions, progress_bar: ProgressBar) -> str:
    """Train a system without epochs."""
    training, out, data = parts.training, options.out, options.data
    assert isinstance(training, Solving)
    unused = (options.epochs, options.rate, options.resume, options.init, options.pretrained, options.mlflow)
    if any(unused) or options.overrides:
        raise UsageError(
            f"{system} is solved at once: leave out --epochs, --rate, --resume, --init, --pretrained, "
            "--mlflow and NAME=VALUE"
        )
    if (out / LAST).exists():
        raise GourmetError(f"{out} holds a run already: name another --out")
    if data is None:
        raise UsageError(f"{system} has no bundled data: name a folder or file to learn from with --data")
    with progress_bar("learning") as tick:
        lines = training.solve(data, options, tick)
    write_run(out, {"system": system, "data": str(data.resolve()), "seed": options.seed})
    if isinstance(training, Rehearsing):
        rehearse(parts, out / LAST, data, progress_bar)
    return f"{lines}\n{out / LAST}"
