"""`gourmet translate`: texts through a translator, as arguments or a line each."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import click

from gourmet.bulk.resumable_table import answered
from gourmet.commands.bulk import (
    Engine,
    Generating,
    beams_option,
    bulk_options,
    check_out,
    generated_table,
    generating,
)
from gourmet.commands.progress import bar
from gourmet.contracts import Options
from gourmet.errors import UsageError, printable

_TEXTS = 16  # of a request
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
    gourmet translate --out english.parquet < russian.txt
    RAY_ADDRESS=10.0.0.1:6379 gourmet translate --out english.parquet --engine ray < russian.txt
    """
    if not texts and sys.stdin.isatty():
        raise UsageError('name a text, as in gourmet translate "Я люблю чай.", or a file')
    check_out(out, engine)
    texts = tuple(chain.from_iterable(map(_texts_of, texts)))
    options: Options = {"beams": beams} if beams > 1 else {}
    how = {"system": system, "model": model, "together": _TEXTS}
    with generating("text", "translation", options, url=url, **how) as by:  # type: ignore[arg-type]
        if out:
            plan = {"beams": beams, "texts": texts}
            generated_table(_Texts(texts), by, out, engine, plan=plan, doing="translating")
            return
        _print(list(texts) or list(_read(sys.stdin.buffer)), "text" if texts else "line", by)


def _texts_of(argument: str) -> Iterator[str]:
    """Yield the lines of a file, or the argument itself; refuse what looks like a file and is none."""
    path = Path(argument)
    with suppress(OSError, ValueError):  # the argument is too long for a path
        if path.is_file():
            with path.open("rb") as file:
                yield from _read(file)
            return
    if re.fullmatch(r"\S*/\S+|\S+\.(txt|md|csv|tsv|jsonl?)", argument):
        raise UsageError(f"{argument} does not exist: name a file of texts, a line each, or write a text")
    yield argument


def _print(lines: Sequence[str], kind: str, by: Generating) -> None:
    numbers = [number for number, line in enumerate(lines, 1) if line]
    translations: dict[int, str] = {}
    warnings: list[str] = []
    rough: list[int] = []
    rows = chain.from_iterable(answered(by.rows, filter(None, lines), by.how))
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
        click.echo(printable(translations.get(number, "")))  # a foreign server may send anything
    if rough:
        named = ", ".join(map(str, rough[:_MAX_NAMED])) + (", …" if len(rough) > _MAX_NAMED else "")
        warnings.append(f"{len(rough)} of {len(translations)} are rough guesses: {kind} {named}")
    for warning in warnings:
        click.echo(printable(f"Warning: {warning}"), err=True)


@dataclass(frozen=True)
class _Texts:
    """The texts of the command line, or the lines of stdin, without empty ones."""

    texts: Sequence[str]
    column: str = "text"

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.texts or _read(sys.stdin.buffer) if text)

    def count(self) -> int | None:
        """Return the number of texts, or None where stdin is a pipe, which can be read only once."""
        if self.texts:
            return sum(1 for _ in self)
        if not sys.stdin.buffer.seekable():
            return None
        position = sys.stdin.buffer.tell()
        number = sum(1 for _ in self)
        sys.stdin.buffer.seek(position)
        return number


def _read(file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            yield line.decode().strip()
        except UnicodeDecodeError as exc:
            raise UsageError(
                f"line {number} is not UTF-8 from byte {exc.start} on: convert it first"
            ) from exc
