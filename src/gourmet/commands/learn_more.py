"""`gourmet learn-more`: fine-tune the served network on your own labelled pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from gourmet.commands.options import to_option
from gourmet.commands.progress import bar, json_lines
from gourmet.commands.values import FOUND_FOLDER, PATH, system_of
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.systems import registry
from gourmet.systems.parts import SystemParts


@click.command("learn-more")
@click.argument("system", metavar="SYSTEM-OR-MODEL", callback=system_of)
@click.argument("folder", type=FOUND_FOLDER)
@to_option
@click.option("--out", type=PATH, help="Keep the run in this folder.  [default: runs/SYSTEM-more]")
@click.option("--json", "as_json", is_flag=True, help="Print progress and result as lines of JSON.")
def learn_more(system: str, folder: Path, models: Path, out: Path | None, as_json: bool) -> None:
    """Teach SYSTEM's served network the labelled pictures in FOLDER.

    FOLDER has a folder for each class, named by its label or number; not every class needs pictures. A folder
    `other` has pictures of none of the classes. The app keeps its visitors' corrections in such a folder
    (KEEP_CORRECTIONS). The table shows the change of each class; few pictures are measured by five-fold
    cross-validation. The served version does not change until you deploy.
    """
    from gourmet.evaluation.labelled_pictures import LabelledPictures
    from gourmet.learning import learn_more as more
    from gourmet.reports.table import columns
    from gourmet.repository.versions import newest_version

    classifier, data = registry.classification(system), SystemParts(system).data
    if not isinstance(data, LabelledPictures):
        raise UsageError(f"{system} cannot learn more: its data are not labelled pictures")
    file = (out or Path("runs") / f"{system}-more") / more.FILE
    if file.exists():
        raise GourmetError(f"{file.parent} holds a run already: name another --out, or delete it")
    model = models / classifier.default_model
    with json_lines() if as_json else bar("learning") as tick:
        learned = more.learn(classifier, data, newest_version(model), folder, tick)
    learned.write(file)
    if as_json:
        echo(json.dumps(learned.as_dict()))
    else:
        heading = ("your photos", "measured", "right before", "right now", "")
        own = [
            (
                *(str(row[name]) for name in ("label", "measured", "before", "now")),
                f"too few to tell: add {row['more']}" if row["more"] else "",
            )
            for row in learned.own
        ]
        echo(columns([heading, *own]))
        echo("each was asked of a layer that had not learned it\n")
        echo(replace(learned.kept, model=model.name, version="served").text())
        echo(f"\n{learned.sentence}.")
        if learned.doubted:
            names = "".join(f"\n  {name}" for name in learned.doubted)
            count = f"{len(learned.doubted)} of your {learned.photos} labels"
            echo(f"{count} contradict what the model knows; look at these first:{names}")
    if learned.kept.lost:
        raise GourmetError(f"worse for {learned.kept.losses()}: it would not be deployed; add more pictures")
    if not as_json:
        confirmed = " --force     if the labels are right all the same" if learned.must_confirm else ""
        echo(f"next: gourmet deploy {system} --weights {file}{confirmed}")
