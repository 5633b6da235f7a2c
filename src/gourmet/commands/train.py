"""`gourmet train`: a network from photos, resumable at any moment."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FILE, PATH, POSITIVE, system_of
from gourmet.errors import GourmetError, UsageError
from gourmet.systems import registry

if TYPE_CHECKING:
    from gourmet.tasks.system_parts import SystemParts

_MLFLOW: Final = "mlflow_run"


@click.command()
@click.argument("system", metavar="SYSTEM-OR-MODEL", callback=system_of)
@click.argument("overrides", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--data",
    type=PATH,
    help="Learn from this folder or file. [default: the data that comes with the system, if any]",
)
@click.option("--out", type=PATH, help="Keep the run in this folder. [default: runs/SYSTEM]")
@click.option("--epochs", type=POSITIVE, help="Train for so many epochs. [default: the system's recipe]")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Raise the learning rate to this at most."
)
@click.option("--seed", type=int, default=0, help="Repeat a run by its seed.")
@click.option("--limit", type=POSITIVE, help="Learn from this many examples only.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in --out, with its recipe.")
@click.option(
    "--checkpoint-every",
    type=click.FloatRange(min=0),
    default=60,
    metavar="S",
    help="Save a checkpoint every S seconds: a kill loses no more than that; Ctrl-C loses nothing.",
)
@click.option(
    "--init",
    type=PATH,
    help="Begin with these weights: best.safetensors of a run, a plain .pth, or a served model.pt.",
)
@click.option(
    "--rehearse",
    type=FOUND_FILE,
    metavar="WEIGHTS",
    help="Train nothing: make of --data the set of WEIGHTS that `gourmet learn-more` rehearses.",
)
@click.option("--pretrained", is_flag=True, help="Begin with ImageNet weights, downloaded by torchvision.")
@click.option(
    "--mlflow", "tell_mlflow", is_flag=True, help="Log to MLflow too, in runs/mlruns of this machine."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--threads", type=POSITIVE, help="Use so many CPU threads. [default: torch's own choice]")
def train(
    system: str,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    epochs: int | None,
    rate: float | None,
    seed: int,
    limit: int | None,
    resume: bool,
    checkpoint_every: float,
    init: Path | None,
    rehearse: Path | None,
    pretrained: bool,
    tell_mlflow: bool,
    device: str,
    threads: int | None,
) -> None:
    """Train SYSTEM's network; weights, checkpoint and log are written to --out.

    NAME=VALUE changes the configuration of systems that have one, as in `gourmet train translator width=512`.
    """
    import torch

    from gourmet.runtime.files import written_aside
    from gourmet.tasks.system_parts import SystemParts
    from gourmet.training import mlflow_log
    from gourmet.training.files import load_tensors, put_tensors
    from gourmet.training.loop import CHECKPOINT, LAST, fit
    from gourmet.training.run import read_run, write_run
    from gourmet.training.task import Configurable, Recipe, Rehearsing, Solving

    if init and (resume or pretrained):
        raise GourmetError("--init says what to begin with, and so does --resume or --pretrained: give one")
    out = out or Path("runs") / system
    parts = SystemParts(system, registry.piece)
    if rehearse:
        if not isinstance(parts.training, Rehearsing) or data is None:
            raise UsageError(
                "--rehearse takes a system that learns from photos, and their folder with --data"
            )
        with bar("rehearsing") as tick:
            click.echo(parts.training.rehearse(parts.evaluation.load(rehearse, "")[0], data, rehearse, tick))
        return
    if isinstance(parts.training, Solving):
        if epochs or rate or resume or init or pretrained or tell_mlflow or overrides:
            raise UsageError(
                f"{system} is solved at once: leave out --epochs, --rate, --resume, --init, --pretrained, "
                "--mlflow and NAME=VALUE"
            )
        _solve(system, parts, data, out, limit, seed, threads)
        return
    if not resume and (out / CHECKPOINT).exists():
        raise GourmetError(f"{out} holds a run already: go on with it by --resume, or name another --out")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if threads:
        torch.set_num_threads(threads)
    training = parts.training
    begun: dict[str, Any] = read_run(out) if resume else {"init": init and str(init)}
    if overrides := (*begun.get("overrides", ()), *overrides):
        if not isinstance(training, Configurable):
            raise UsageError(f"{system} has no configuration to change: leave out {' '.join(overrides)}")
        training = training.configured(overrides)
        begun["overrides"] = overrides
    if resume:
        recipe = Recipe.from_dict(begun["recipe"], epochs=epochs, peak_rate=rate)
        seed = recipe.seed
        data = data or Path(begun["data"])
    else:
        recipe = training.recipe(epochs=epochs, rate=rate, seed=seed, device=device, pretrained=pretrained)
    if data is None:
        if (bundled := training.bundled_data()) is None:
            raise UsageError(
                f"{system} brings no data along: name a folder or file to learn from with --data"
            )
        data, words = bundled
        click.echo(f"no --data given: learning from {words}")
    with bar("reading") as tick:
        task = training.prepare(data, limit=limit, seed=seed, device=device, pretrained=pretrained, tick=tick)
    if init:
        put_tensors(task.network, load_tensors(init)[0], init)
    for name, content in task.files.items():
        with written_aside(out / name) as aside:
            aside.write_bytes(content)
    facts = {**begun, "system": system, "data": str(data.resolve()), "recipe": dataclasses.asdict(recipe)}
    parameters = {**task.about, **facts["recipe"], "data": data.name}
    with contextlib.ExitStack() as telling:
        callbacks: dict[str, Any] = {}
        if tell_mlflow:
            facts[_MLFLOW], callbacks["on_epoch"] = telling.enter_context(
                mlflow_log.logged(out, system, parameters, begun.get(_MLFLOW, ""))
            )
        write_run(out, facts)
        with bar("training") as tick:
            log = fit(
                task,
                recipe,
                out,
                resume=resume,
                tick=tick,
                checkpoint_every_s=checkpoint_every,
                **callbacks,
            )
    if isinstance(training, Rehearsing):
        with bar("rehearsing") as tick:
            training.rehearse(parts.evaluation.load(out / LAST, "")[0], data, out / LAST, tick)
    last = log[-1]
    epochs_done = f"{last['epoch']} epoch{'s' * (last['epoch'] != 1)}"
    click.echo(f"{out / LAST}: score {last['score']:.3f} after {epochs_done}")


def _solve(
    system: str,
    parts: SystemParts,
    data: Path | None,
    out: Path,
    limit: int | None,
    seed: int,
    threads: int | None,
) -> None:
    """Train a system without epochs."""
    import torch

    from gourmet.training.loop import LAST
    from gourmet.training.run import write_run
    from gourmet.training.task import Rehearsing, Solving

    training = parts.training
    assert isinstance(training, Solving)
    if (out / LAST).exists():
        raise GourmetError(f"{out} holds a run already: name another --out")
    if data is None:
        raise UsageError(f"{system} brings no data along: name a folder or file to learn from with --data")
    if threads:
        torch.set_num_threads(threads)
    with bar("learning") as tick:
        lines = training.solve(data, out, limit=limit, seed=seed, tick=tick)
    write_run(out, {"system": system, "data": str(data.resolve()), "seed": seed})
    if isinstance(training, Rehearsing):
        with bar("rehearsing") as tick:
            training.rehearse(parts.evaluation.load(out / LAST, "")[0], data, out / LAST, tick)
    click.echo(f"{lines}\n{out / LAST}")
