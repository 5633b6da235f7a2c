"""What classify, caption and translate share: options, the lines of a terminal, and the table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import click

from gourmet.bulk.inputs import Inputs
from gourmet.bulk.model_rows import GeneratedRows, ModelRows
from gourmet.bulk.on_ray import check_for_ray, write_with_ray
from gourmet.bulk.resumable_table import (
    SUFFIX,
    AskedModel,
    Journal,
    answer_all,
    answered,
    check_table,
    write_table,
)
from gourmet.commands.options import url_option
from gourmet.commands.progress import Stopped, bar
from gourmet.commands.values import PATH
from gourmet.errors import GourmetError, UsageError, echo

Engine = Literal["local", "ray"]
_RESUMES: Final = "the same command resumes"


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --out, --model, --engine and --url."""
    for option in (
        url_option(),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Run on this machine, or with Ray Data on the cluster at RAY_ADDRESS.",
        ),
        click.option(
            "--model", help="Ask this model.  [default: the system's own; for photos of food, food's]"
        ),
        click.option("--out", type=PATH, help="Write a table: FILE.jsonl or FILE.csv.  [default: print]"),
    ):
        command = option(command)
    return command


beams_option = click.option("--beams", type=click.IntRange(1, 4), default=1, help="Number of beams.")


def check_out(out: Path | None, engine: Engine) -> None:
    """Raise UsageError unless the table can be written, before anything is asked."""
    if engine == "ray":
        check_for_ray(out)
    if out:
        check_table(out)


def print_answers(inputs: Inputs, model: ModelRows) -> None:
    """Print a line for each photo; raise GourmetError if one has no answer."""
    failed = total = 0
    for row in chain.from_iterable(answered(model, inputs)):
        total += 1
        failed += bool(row["error"])
        words = row["error"] or model.in_words(row)
        echo(f"{row['path']}: {words}", err=bool(row["error"]))
    if not total:
        raise UsageError(inputs.nothing)
    if failed:
        raise GourmetError(f"{failed:,} of {total:,} photos have no answer")


@contextmanager
def table_of(inputs: Inputs, model: AskedModel, out: Path) -> Iterator[Journal]:
    """Ask about the inputs that have no row yet, and write the table; the block gets its rows."""
    plan = {**model.plan, "inputs": inputs.sources}
    with closing(Journal(out.with_name(out.name + SUFFIX), plan)) as journal:
        if journal.rows:
            echo(f"going on after {journal.rows:,} rows of {journal.path}", err=True)
        try:
            with bar("asking") as tick:
                answer_all(inputs, journal, model, tick)
        except KeyboardInterrupt:
            raise Stopped(f"stopped after {journal.rows:,} rows; {_RESUMES}") from None
        except UsageError:
            raise
        except GourmetError as exc:
            raise GourmetError(f"{exc}\n       {journal.rows:,} rows are kept; {_RESUMES}") from exc
        if not journal.rows:
            journal.remove()
            raise UsageError(inputs.nothing)
        try:
            write_table(journal, out, model.columns)
            try:
                yield journal
            except BaseException:
                out.unlink()  # or the same command would find the table there
                raise
        except OSError as exc:
            where = f"{exc.filename or out} cannot be written ({exc.strerror}): make room there"
            raise GourmetError(f"{where}\n       {journal.rows:,} rows are kept; {_RESUMES}") from exc
        journal.remove()


def table_by_ray(inputs: Inputs, open_model: Callable[[], AskedModel], out: Path) -> None:
    names = map(os.path.abspath, inputs) if inputs.column == "path" else inputs  # for other nodes
    write_with_ray(open_model, names, out)
    echo(f"table in the folder {out}", err=True)


def generated_table(
    inputs: Inputs, open_model: Callable[[], GeneratedRows], out: Path, engine: Engine
) -> None:
    """Write a table of generated texts, and report how many inputs have an answer."""
    if engine == "ray":
        table_by_ray(inputs, open_model, out)
        return
    with closing(open_model()) as model, table_of(inputs, model, out) as rows:
        errors = [bool(row["error"]) for row in rows]
    echo(f"{errors.count(False):,} of {len(errors):,} have an answer\ntable in {out}", err=True)
