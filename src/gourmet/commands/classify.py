"""`gourmet classify`: what many photos show, as a table."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gourmet.commands.bulk_options import asked_model, bulk_options
from gourmet.commands.options import url_option
from gourmet.commands.values import PATH
from gourmet.errors import GourmetError, UsageError, printable
from gourmet.pictures.header import SUFFIXES

if TYPE_CHECKING:
    from gourmet.bulk.engines import Engine
    from gourmet.bulk.inputs import Inputs
    from gourmet.bulk.photos import Photos
    from gourmet.bulk.run import AskRows, HowMany

# Of a request to Triton.
_TIMEOUT_S = 60.0
_NONE_THERE = f"no photos are there: their names end in {', '.join(sorted(SUFFIXES))}"


@click.command()
@click.argument("photos", nargs=-1, required=True, metavar="PHOTO|FOLDER|LIST|s3://…|-...")
@click.option(
    "--out", type=PATH, help="Write a table: FILE.jsonl, FILE.csv or FILE.parquet.  [default: print lines]"
)
@click.option("--model", help="Ask this model.  [default: that of the system that rejects other pictures]")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="Ask so many requests at a time.",
)
@click.option(
    "--together",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Ask about so many photos in a request.",
)
@bulk_options
@url_option()
def classify(
    photos: tuple[str, ...],
    out: Path | None,
    model: str,
    in_flight: int,
    together: int,
    via: str,
    engine: Engine,
    repositories: tuple[Path, ...],
    url: str,
) -> None:
    """Classify each PHOTO, all photos below a FOLDER, and those that a LIST or stdin (-) names, a line each.

    Photos in S3 are named s3://BUCKET/KEY, and all below a prefix s3://BUCKET/PREFIX.
    With --out there is a row for each in a table, and a page beside it that shows how many there are of each
    class, the least sure ones, failures and copies. A photo that cannot be used has the reason in its row.
    A run that was stopped, or lost its server, continues where it was when you call it again.

    \b
    gourmet classify dish.jpg
    gourmet classify holiday/ --out holiday.csv
    find / -name '*.jpg' | gourmet classify - --out all.parquet
    gourmet classify s3://bucket/photos --via file --engine ray --out all.parquet
    """
    from gourmet.bulk.engines import asking
    from gourmet.bulk.inputs import Inputs
    from gourmet.bulk.photos import Classifying
    from gourmet.bulk.run import HowMany
    from gourmet.bulk.tables import check_table

    if out:
        check_table(out)
    inputs = Inputs(photos, SUFFIXES)
    work = Classifying(asked_model(model or usual_model(), url, via, repositories, _TIMEOUT_S))
    with ExitStack() as stack:
        asked = stack.enter_context(closing(work.open()))
        ask, how = stack.enter_context(asking(work, asked, engine, HowMany(together, in_flight)))
        _to_table(inputs, asked, ask, how, out) if out else _to_terminal(inputs, ask, how)


def usual_model() -> str:
    """Any photo may be among many."""
    from gourmet.pictures.classifier import PictureClassifier
    from gourmet.systems import registry

    found = [
        system.default_model
        for system in registry.load_all().values()
        if isinstance(system, PictureClassifier) and system.subject
    ]
    if len(found) != 1:
        raise UsageError(
            f"{len(found)} systems tell other pictures from their own: name a model with --model"
        )
    return found[0]


def _to_terminal(inputs: Inputs, ask: AskRows, how: HowMany) -> None:
    from gourmet.bulk.run import answered

    failed = total = 0
    for rows in answered(ask, inputs, how):
        for row in rows:
            total += 1
            if row["error"]:
                failed += 1
                click.echo(printable(f"{row['path']}: {row['error']}"), err=True)
            else:
                doubt = "" if row["sure"] else "  (not sure)"
                click.echo(printable(f"{row['path']}: {row['answer']}, {row['probability']:.0%}{doubt}"))
    if not total:
        raise UsageError(_NONE_THERE)
    if failed:
        raise GourmetError(f"{failed:,} of {total:,} photos have no answer")


def _to_table(inputs: Inputs, photos: Photos, ask: AskRows, how: HowMany, out: Path) -> None:
    from gourmet.bulk.summary import Summary
    from gourmet.commands.bulk_table import table_of
    from gourmet.runtime.files import write_whole

    plan = {"model": photos.model.name, "inputs": inputs.given}
    asking = table_of(
        inputs, ask, out, photos.columns, how, plan=plan, doing="classifying", none_there=_NONE_THERE
    )
    with asking as rows:
        summary, page = Summary.of(rows), out.with_suffix(".html")
        when, command = (
            datetime.now(UTC).isoformat(timespec="seconds"),
            shlex.join(["gourmet", *sys.argv[1:]]),
        )
        write_whole(page, summary.page(photos.contract, command, when))
    click.echo(printable(summary.text()))
    click.echo(f"table in {out}, page in {page}", err=True)
