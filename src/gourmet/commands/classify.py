"""`gourmet classify`: what many photos show, as a table."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from gourmet.bulk.inputs import Photos
from gourmet.bulk.model_rows import PhotoRows
from gourmet.bulk.summary import summarise
from gourmet.commands.bulk import Engine, bulk_options, check_out, print_answers, table_by_ray, table_of
from gourmet.errors import UsageError, echo


@click.command()
@click.argument("photos", nargs=-1, required=True, metavar="PHOTO|FOLDER|LIST|-...")
@bulk_options
def classify(photos: tuple[str, ...], out: Path | None, model: str | None, engine: Engine, url: str) -> None:
    """Classify each PHOTO, all photos below a FOLDER, and those that a LIST or stdin (-) names, a line each.

    With --out there is a row for each in a table, and a page beside it that shows how many there are of each
    class, the least sure ones and failures. A photo that cannot be used has the reason in its row.
    A run that was stopped, or lost its server, continues where it was when you call it again.

    \b
    gourmet classify dish.jpg
    gourmet classify holiday/ --out holiday.csv
    find / -name '*.jpg' | gourmet classify - --out all.jsonl
    RAY_ADDRESS=10.0.0.1:6379 gourmet classify /photos --engine ray --out all.parquet --url triton:8000
    """
    check_out(out, engine)
    inputs, opened = Photos(photos), partial(PhotoRows, url, model or usual_model())
    if out and engine == "ray":
        table_by_ray(inputs, opened, out)
        return
    with closing(opened()) as photo_rows:
        _to_table(inputs, photo_rows, out) if out else print_answers(inputs, photo_rows)


def usual_model() -> str:
    """Return the model that takes photos as they are and knows which of them do not show its subject."""
    from gourmet.pictures.classifier import PictureClassifier
    from gourmet.systems import registry

    models = [
        system.default_model
        for system in registry.load_all().values()
        if isinstance(system, PictureClassifier) and system.subject and "BYTES" in system.datatypes
    ]
    if len(models) != 1:
        raise UsageError(
            f"{len(models)} systems know which photos do not show their subject: name a model with --model"
        )
    return models[0]


def _to_table(inputs: Photos, photo_rows: PhotoRows, out: Path) -> None:
    from gourmet.served.files import write_whole

    with table_of(inputs, photo_rows, out) as rows:
        report, page = summarise(rows, photo_rows.contract), out.with_suffix(".html")
        command, when = shlex.join(["gourmet", *sys.argv[1:]]), datetime.now(UTC)
        write_whole(page, report.page(command, when.isoformat(timespec="seconds")))
    echo(report.text())
    echo(f"table in {out}, page in {page}", err=True)
