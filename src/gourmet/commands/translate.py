"""`gourmet translate`: texts through a translator, as arguments or a line each."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO

import click

from gourmet.bulk.resumable_table import answered
from gourmet.commands.bulk import Engine, Generating, check_out, engine_option, generated_table, generating
from gourmet.commands.options import url_option
from gourmet.commands.progress import bar
from gourmet.commands.values import PATH
from gourmet.contracts import Options
from gourmet.errors import UsageError, printable

_TEXTS = 16  # of a request
_LONGEST = 64_000
_MOST_LINES = 1_000_000
_MOST_NAMED = 20


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT|FILE]...")
@click.option("--system", "asked", help="Translate by this system.  [default: the model's, or Russian]")
@click.option("--model", help="Ask this model.  [default: the system's own]")
@click.option("--beams", type=click.IntRange(1, 4), default=1, help="Number of beams.")
@click.option(
    "--out", type=PATH, help="Write a table: FILE.jsonl, FILE.csv or FILE.parquet.  [default: print]"
)
@engine_option
@url_option()
def translate(
    texts: tuple[str, ...],
    asked: str | None,
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
    translating = generating(
        "text", "translation", options, system=asked, model=model, url=url, together=_TEXTS
    )
    with translating as by:
        if out:
            plan = {"beams": beams, "texts": texts}
            generated_table(_Texts(texts), by, out, engine, plan=plan, doing="translating")
            return
        _print(list(texts) or list(_read(sys.stdin.buffer, _MOST_LINES)), "text" if texts else "line", by)


def _texts_of(given: str) -> Iterator[str]:
    """The lines of a file, or a text as it is; a path that does not exist is refused."""
    path = Path(given)
    with suppress(OSError, ValueError):  # what is too long for a path is none
        if path.is_file():
            with path.open("rb") as file:
                yield from _read(file, _MOST_LINES)
            return
    if re.fullmatch(r"\S*/\S+|\S+\.(txt|md|csv|tsv|jsonl?)", given):
        raise UsageError(f"{given} does not exist: name a file of texts, a line each, or write a text")
    yield given


def _print(lines: Sequence[str], kind: str, by: Generating) -> None:
    there = [place for place, line in enumerate(lines) if line]
    found: dict[int, str] = {}
    warnings: list[str] = []
    rough: list[int] = []
    rows = chain.from_iterable(answered(by.rows, (lines[place] for place in there), by.how))
    with bar("translating") as tick:
        for place, row in zip(there, rows, strict=True):
            where = f"{kind} {place + 1}"
            if row["error"]:
                raise UsageError(f"{where}: {row['error']}")
            found[place] = row["translation"]
            if row.get("sure") is False:
                rough.append(place + 1)
            if row["warning"]:
                warnings.append(f"{where}: {row['warning']}")
            tick(len(found) / len(there), f"{len(found)}/{len(there)}")
    for place in range(len(lines)):
        click.echo(printable(found.get(place, "")))  # the server may be anybody's
    if rough:
        named = ", ".join(map(str, rough[:_MOST_NAMED])) + (", …" if len(rough) > _MOST_NAMED else "")
        warnings.append(f"{len(rough)} of {len(found)} are rough guesses: {kind} {named}")
    for warning in warnings:
        click.echo(printable(f"Warning: {warning}"), err=True)


@dataclass(frozen=True)
class _Texts:
    """Texts as they are given, or the lines of stdin; empty ones are left out."""

    given: Sequence[str]
    column: str = "text"

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.given or _read(sys.stdin.buffer) if text)

    def count(self) -> int | None:
        """Return the number of texts, or None where stdin is a pipe, which can be read only once."""
        if self.given:
            return sum(1 for _ in self)
        if not sys.stdin.buffer.seekable():
            return None
        place = sys.stdin.buffer.tell()
        found = sum(1 for _ in self)
        sys.stdin.buffer.seek(place)
        return found


def _read(file: BinaryIO, max_lines: int | None = None) -> Iterator[str]:
    for number in count(1) if max_lines is None else range(1, max_lines + 1):
        if not (line := file.readline(_LONGEST + 1)):
            return
        if len(line) > _LONGEST:
            raise UsageError(
                f"line {number} has more than {_LONGEST:,} bytes: a text has 2,000 characters at most"
            )
        yield _decoded(number, line)
    raise UsageError(f"there are more than {max_lines:,} lines: give fewer at a time, or --out a table")


def _decoded(number: int, line: bytes) -> str:
    try:
        return line.decode().strip()
    except UnicodeDecodeError as exc:
        raise UsageError(f"line {number} is not UTF-8 from byte {exc.start} on: convert it first") from exc
