"""`gourmet caption`: what photos show, in a sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click

from gourmet.bulk.inputs import Inputs
from gourmet.bulk.model_rows import read_photo
from gourmet.bulk.resumable_table import answered
from gourmet.commands.bulk import (
    Engine,
    Generating,
    beams_option,
    bulk_options,
    check_out,
    generated_table,
    generating,
    system_for,
)
from gourmet.commands.progress import bar
from gourmet.contracts import Options
from gourmet.errors import GourmetError, UsageError, printable
from gourmet.pictures.header import SUFFIXES

# Photos of a request: those of two fill the served loop, and none waits long for the others to be decoded.
_PHOTOS = 8


@click.command()
@click.argument("photos", nargs=-1, required=True, metavar="PHOTO|FOLDER|LIST|-...")
@click.option("--stream", is_flag=True, help="Show each caption word by word, as it is made.")
@click.option("--prompt", help="Beginning of every caption, such as 'a photograph of'.")
@beams_option
@bulk_options
def caption(
    photos: tuple[str, ...],
    stream: bool,
    out: Path | None,
    prompt: str | None,
    beams: int,
    model: str | None,
    engine: Engine,
    url: str,
) -> None:
    """Describe each PHOTO, and each photo of a FOLDER, a LIST or stdin (-), in a line.

    Captions are a model's, and may be wrong. With --out there is a row for each photo, and a run that was
    stopped continues where it was when you call it again.

    \b
    gourmet caption dog.jpg --stream
    gourmet caption holiday/ --out captions.csv
    """
    if stream and (out or beams > 1 or engine != "local"):
        raise UsageError("--stream shows a caption while it is made: leave out --out, --beams and --engine")
    check_out(out, engine)
    options: Options = {} if prompt is None else {"prompt": prompt}
    options = {**options, "beams": beams} if beams > 1 else options
    inputs = Inputs(photos, SUFFIXES)
    if stream:
        _in_pieces(model, url, _paths_of(inputs), options)
        return
    with generating("picture", "caption", options, model=model, url=url, together=_PHOTOS) as by:
        if out:
            plan = {"options": options, "inputs": inputs.sources}
            generated_table(inputs, by, out, engine, plan=plan, doing="describing")
        else:
            _whole(by, _paths_of(inputs))


def _paths_of(inputs: Inputs) -> list[str]:
    if not (paths := list(inputs)):
        raise UsageError(f"no photos are there: their names end in {', '.join(sorted(SUFFIXES))}")
    return paths


def _whole(by: Generating, paths: Sequence[str]) -> None:
    failed = 0
    rows = chain.from_iterable(answered(by.rows, paths, by.how))
    with bar("describing") as tick:
        for number, (path, row) in enumerate(zip(paths, rows, strict=True), 1):
            tick(number / len(paths), f"{number}/{len(paths)}")
            failed += bool(row["error"])
            words = row["error"] or f"{row['caption']}{_doubt(row.get('sure'))}"
            click.echo(printable(f"{path}: {words}"), err=bool(row["error"]))
    if failed:
        raise GourmetError(f"{failed} of {len(paths)} photos have no caption")


def _in_pieces(name: str | None, url: str, paths: Sequence[str], options: Options) -> None:
    from gourmet.client.deadline import Deadline
    from gourmet.serving.connect import connect

    system = system_for("picture")
    with connect(url) as triton:
        model = triton.describe(name or f"{system.default_model}_stream")
        if not model.decoupled:
            raise UsageError(f"{model.name} answers whole: leave out --stream, or name one that streams")
        for path in paths:
            try:
                inputs = system.request_inputs(read_photo(path), model, options)
            except ValueError as exc:
                raise UsageError(f"{path}: {exc}") from exc
            click.echo(printable(f"{path}: "), nl=False)
            piece = None
            for outputs in triton.stream(model, inputs, Deadline(60.0)):
                if outputs is not None:
                    piece = system.generated(outputs, model)
                    click.echo(printable(piece.text), nl=False)
            click.echo(_doubt(model.is_sure(piece)) if piece else "")


def _doubt(sure: bool | None) -> str:
    return "  (not sure)" if sure is False else ""
