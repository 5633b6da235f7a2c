"""`gourmet caption`: what photos show, in a sentence each."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import click

from gourmet.bulk.inputs import Photos
from gourmet.bulk.model_rows import NOT_SURE, GeneratedRows, read_photo, system_for
from gourmet.commands.bulk import (
    Engine,
    beams_option,
    bulk_options,
    check_out,
    generated_table,
    print_answers,
)
from gourmet.contracts import Options
from gourmet.errors import UsageError, echo


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
    inputs = Photos(photos)
    if stream:
        _in_pieces(model, url, inputs, options)
        return
    opened = partial(GeneratedRows, url, "picture", options, model=model)
    if out:
        generated_table(inputs, opened, out, engine)
    else:
        with closing(opened()) as rows:
            print_answers(inputs, rows)


def _in_pieces(name: str | None, url: str, photos: Photos, options: Options) -> None:
    from gourmet.stack.connect import connect
    from gourmet.triton_client.deadline import Deadline

    if not (paths := list(photos)):
        raise UsageError(photos.nothing)
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
            echo(f"{path}: ", nl=False)
            piece = None
            for outputs in triton.stream(model, inputs, Deadline(60.0)):
                if outputs is not None:
                    piece = system.generated(outputs, model)
                    echo(piece.text, nl=False)
            echo(NOT_SURE if piece and model.is_sure(piece) is False else "")
