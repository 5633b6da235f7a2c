"""`gourmet learn-more`: people's own labelled pictures on top of the weights that are served."""

from __future__ import annotations

from pathlib import Path

import click

from gourmet.commands.options import to_option
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FOLDER, PATH, system_of
from gourmet.errors import GourmetError, UsageError
from gourmet.systems import registry


@click.command("learn-more")
@click.argument("system", metavar="SYSTEM-OR-MODEL", callback=system_of)
@click.argument("folder", type=FOUND_FOLDER)
@to_option
@click.option("--out", type=PATH, help="Keep the run in this folder.  [default: runs/SYSTEM-more]")
@click.option("--epochs", hidden=True, help="Without effect: the layer is solved at once.")
@click.option("--rate", hidden=True, help="Without effect: the layer is solved at once.")
@click.option("--seed", hidden=True, help="Without effect: nothing is drawn at random.")
def learn_more(
    system: str, folder: Path, models: Path, out: Path | None, epochs: int, rate: float, seed: int
) -> None:
    """Fine-tune SYSTEM's served network on the labelled pictures in FOLDER.

    FOLDER has a folder for each class, named by its label or number; not every class needs pictures. A folder
    `other` holds pictures of none of them, for a system that declines such. The app writes its visitors'
    corrections to such a folder if KEEP_CORRECTIONS names one. A fifth of the pictures is held out, to show
    class by class what changed. What is served stays as it is until you deploy.
    """
    from gourmet.deploying.target import table
    from gourmet.reports.table import columns
    from gourmet.repository import versions
    from gourmet.tasks import evaluation_file
    from gourmet.tasks.classification import learn_more as more
    from gourmet.tasks.classification.picture_training import PictureTraining
    from gourmet.tasks.system_parts import SystemParts
    from gourmet.training.loop import BEST
    from gourmet.training.run import write_run

    parts = SystemParts(system, registry.piece)
    training = parts.training
    if not isinstance(training, PictureTraining):
        raise UsageError(f"{system} cannot learn more: it is not trained as classifiers of photos are")
    out = out or Path("runs") / f"{system}-more"
    if (out / BEST).exists():
        raise GourmetError(f"{out} holds a run already: name another --out, or delete it")
    model = models / registry.classification(system).default_model
    version = model / str(versions(model)[-1])
    with bar("reading") as tick:
        weights = more.served_weights(version, out)
        learning, about = more.prepare(training, parts.evaluation.load, folder, weights, tick)
    write_run(out, {"system": system, "data": str(folder.resolve())})
    calibration = more.served_calibration(version)
    checks, changes = learning.finish(out / BEST, about, calibration)
    evaluation_file.write(out / BEST, calibration=vars(calibration), accuracy={"learned more": changes})
    heading = ("class", "pictures kept apart", "right before", "right now")
    click.echo(columns([heading, *(tuple(map(str, change.values())) for change in changes)]))
    if (kept := sum(change["pictures"] for change in changes)) < more.TELLING:
        click.echo(f"{kept} kept apart are too few to tell by; {more.TELLING} or more would say something")
    click.echo(f"what it knew before, by activations of photos that it was not taught:\n{table(checks)}")
    if lost := [check.what for check in checks if not check.passed]:
        raise GourmetError(f"it lost too much of what it knew ({'; '.join(lost)}), and would not be deployed")
    click.echo(f"next: gourmet deploy {system} --format all --weights {out / BEST} --data {folder}")
