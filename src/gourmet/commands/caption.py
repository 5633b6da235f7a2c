"""`gourmet caption`: what photos show, in a sentence each, through the running stack."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gourmet.commands.options import url_option
from gourmet.commands.progress import bar
from gourmet.commands.values import PATH
from gourmet.errors import GourmetError, UsageError, printable
from gourmet.pictures.header import SUFFIXES

if TYPE_CHECKING:
    from gourmet.commands.generating import Ask
    from gourmet.contracts import GeneratedText, Generation, ModelInfo, Options

# Photos of a request: those of two fill the served loop, and none waits long for the others to be decoded.
_PHOTOS = 8
_MOST_BYTES = 64 << 20
_COLUMNS = ("photo", "caption", "sure", "score")


@click.command()
@click.argument("photos", nargs=-1, required=True, metavar="PHOTO|FOLDER|LIST|s3://…|-...")
@click.option("--stream", is_flag=True, help="Show each caption word by word, as it is made.")
@click.option("--csv", "as_csv", is_flag=True, help=f"Print a table: {', '.join(_COLUMNS)}.")
@click.option(
    "--out", type=PATH, help="Write a table: FILE.jsonl, FILE.csv or FILE.parquet.  [default: print lines]"
)
@click.option("--prompt", help="What every caption begins with, such as 'a photograph of'.")
@click.option("--beams", type=click.IntRange(1, 4), default=1, help="Follow so many beginnings at a time.")
@click.option("--model", help="Ask this model.  [default: the system's own]")
@url_option()
def caption(
    photos: tuple[str, ...],
    stream: bool,
    as_csv: bool,
    out: Path | None,
    prompt: str | None,
    beams: int,
    model: str | None,
    url: str,
) -> None:
    """Say what each PHOTO shows, or each photo below a FOLDER, or of a LIST or stdin (-), a line each.

    Captions are a model's, and may be wrong. With --out there is a row for each photo, and what was stopped
    goes on where it was when it is called again.

    \b
    gourmet caption dog.jpg --stream
    gourmet caption holiday/ --csv > captions.csv
    gourmet caption holiday/ --out captions.parquet
    """
    from gourmet.bulk.inputs import Inputs
    from gourmet.commands.bulk_table import generated_table
    from gourmet.commands.generating import asks, system_for
    from gourmet.serving.connect import connect

    if stream and (as_csv or out or beams > 1):
        raise UsageError("--stream shows a caption while it is made: leave out --csv, --out and --beams")
    system = system_for("picture")
    with connect(url) as triton:
        info = triton.describe(
            model or (f"{system.default_model}_stream" if stream else system.default_model)
        )
    if stream and not info.decoupled:
        raise UsageError(f"{info.name} answers whole: leave out --stream, or name one that streams")
    options: Options = {"prompt": prompt} if prompt is not None else {}
    if beams > 1:
        options = {**options, "beams": beams}
    inputs = Inputs(photos, SUFFIXES)
    ask = asks(system, info, url, options)
    if out:
        plan = {"options": options, "inputs": inputs.given}
        generated_table(
            inputs, info, ask, _read, out, made="caption", wanted=_PHOTOS, plan=plan, doing="describing"
        )
        return
    if not (paths := list(inputs)):
        raise UsageError(f"no photos are there: their names end in {', '.join(sorted(SUFFIXES))}")
    if stream:
        _in_pieces(system, info, url, paths, options)
    else:
        _whole(info, ask, paths, as_csv=as_csv)


def _whole(model: ModelInfo, ask: Ask, paths: Sequence[str], *, as_csv: bool) -> None:
    from gourmet.commands.generating import answers
    from gourmet.contracts import GeneratedText
    from gourmet.reports.table import spreadsheet_cell

    table = csv.writer(sys.stdout, lineterminator="\n")
    if as_csv:
        table.writerow(_COLUMNS)
    examples, failed = [partial(_read, path) for path in paths], 0
    with bar("describing") as tick:
        found = answers(ask, model, examples, wanted=_PHOTOS)
        for number, (path, answer) in enumerate(zip(paths, found, strict=True), 1):
            tick(number / len(paths), f"{number}/{len(paths)}")
            if not isinstance(answer, GeneratedText):
                click.echo(printable(f"{path}: {answer}"), err=True)
                failed += 1
            elif as_csv:
                sure = {True: "yes", False: "no", None: ""}[model.is_sure(answer)]
                table.writerow(
                    (
                        spreadsheet_cell(printable(path)),
                        spreadsheet_cell(answer.text),
                        sure,
                        f"{answer.score or 0:.3f}",
                    )
                )
            else:
                click.echo(printable(f"{path}: {answer.text}{_doubt(answer, model)}"))
    if failed:
        raise GourmetError(f"{failed} of {len(paths)} photos have no caption")


def _in_pieces(
    system: Generation, model: ModelInfo, url: str, paths: Sequence[str], options: Options
) -> None:
    from gourmet.client.deadline import Deadline
    from gourmet.serving.connect import connect

    with connect(url) as triton:
        for path in paths:
            try:
                inputs = system.request_inputs(_read(path), model, options)
            except ValueError as exc:
                raise UsageError(f"{path}: {exc}") from exc
            click.echo(printable(f"{path}: "), nl=False)
            piece = None
            for outputs in triton.stream(model, inputs, Deadline(60.0)):
                if outputs is not None:
                    piece = system.generated(outputs, model)
                    click.echo(printable(piece.text), nl=False)
            click.echo(_doubt(piece, model) if piece else "")


def _read(path: str) -> bytes:
    from gourmet.bulk.inputs import read_input
    from gourmet.pictures.header import look

    try:
        data = read_input(path, _MOST_BYTES)
    except OSError as exc:
        raise ValueError(f"it cannot be read: {exc.strerror or exc}") from exc
    look(data)  # raises a ValueError for what is certainly not a picture
    return data


def _doubt(answer: GeneratedText, model: ModelInfo) -> str:
    return "  (not sure)" if model.is_sure(answer) is False else ""
