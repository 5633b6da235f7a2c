"""`gourmet translate`: texts through a translator, as arguments or a line each."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import click

from gourmet.bulk.inputs import Texts, text_lines
from gourmet.bulk.model_rows import GeneratedRows
from gourmet.bulk.resumable_table import answered
from gourmet.commands.bulk import (
    Engine,
    beams_option,
    bulk_options,
    check_out,
    generated_table,
)
from gourmet.commands.progress import bar
from gourmet.contracts import Options
from gourmet.errors import UsageError, echo

_MAX_NAMED = 20


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT|FILE]...")
@click.option("--system", help="Translate by this system.  [default: the model's, or Russian]")
@beams_option
@bulk_options
def translate(
    texts: tuple[str, ...],
    system: str | None,
    model: str | None,
    beams: int,
    out: Path | None,
    engine: Engine,
    url: str,
) -> None:
    """Translate each Russian TEXT and each line of a FILE into English; without one, every line of stdin.

    With --system or --model, texts of another pair of languages.

    Doubts, such as a number that a translation does not repeat, are written to stderr at the end, with the
    translations that are rough guesses. With --out there is a row for each line that is not empty, of any
    number of them, and a run that was stopped continues where it was when you call it again.

    \b
    gourmet translate "предоставляются полотенца ."
    gourmet translate russian.txt > english.txt
    gourmet translate --out english.csv < russian.txt
    RAY_ADDRESS=10.0.0.1:6379 gourmet translate --out english.parquet --engine ray < russian.txt
    """
    if not texts and sys.stdin.isatty():
        raise UsageError('name a text, as in gourmet translate "Я люблю чай.", or a file')
    check_out(out, engine)
    texts = tuple(chain.from_iterable(map(_texts_of, texts)))
    options: Options = {"beams": beams} if beams > 1 else {}
    opened = partial(GeneratedRows, url, "text", options, model=model, system=system)
    if out:
        generated_table(Texts(texts), opened, out, engine)
        return
    with closing(opened()) as rows:
        _print(texts or list(text_lines(sys.stdin.buffer)), "text" if texts else "line", rows)


def _texts_of(argument: str) -> Iterator[str]:
    """Yield the lines of a file, or the argument itself; refuse what looks like a file and is none."""
    path = Path(argument)
    with suppress(OSError, ValueError):  # the argument is too long for a path
        if path.is_file():
            with path.open("rb") as file:
                yield from text_lines(file)
            return
    if re.fullmatch(r"\S*/\S+|\S+\.(txt|md|csv|tsv|jsonl?)", argument):
        raise UsageError(f"{argument} does not exist: name a file of texts, a line each, or write a text")
    yield argument


def _print(lines: Sequence[str], kind: str, model: GeneratedRows) -> None:
    numbers = [number for number, line in enumerate(lines, 1) if line]
    translations: dict[int, str] = {}
    warnings: list[str] = []
    rough: list[int] = []
    rows = chain.from_iterable(answered(model, filter(None, lines)))
    with bar("translating") as tick:
        for number, row in zip(numbers, rows, strict=True):
            where = f"{kind} {number}"
            if row["error"]:
                raise UsageError(f"{where}: {row['error']}")
            translations[number] = row["translation"]
            if row.get("sure") is False:
                rough.append(number)
            if row["warning"]:
                warnings.append(f"{where}: {row['warning']}")
            tick(len(translations) / len(numbers), f"{len(translations)}/{len(numbers)}")
    for number in range(1, len(lines) + 1):
        echo(translations.get(number, ""))  # a foreign server may send anything
    if rough:
        named = ", ".join(map(str, rough[:_MAX_NAMED])) + (", …" if len(rough) > _MAX_NAMED else "")
        warnings.append(f"{len(rough)} of {len(translations)} are rough guesses: {kind} {named}")
    for warning in warnings:
        echo(f"Warning: {warning}", err=True)
