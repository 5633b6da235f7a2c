"""`gourmet translate`: texts through a translator of the running stack, as arguments or a line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import BinaryIO

import click

from gourmet.commands.options import url_option
from gourmet.commands.progress import bar
from gourmet.commands.values import PATH
from gourmet.errors import UsageError, printable

# Texts of a request.
_TEXTS = 16
_LONGEST = 64_000
_MOST_LINES = 1_000_000
_MOST_NAMED = 20


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--system", "asked", help="Translate by this system.  [default: the model's, or Russian]")
@click.option("--model", help="Ask this model.  [default: the system's own]")
@click.option("--beams", type=click.IntRange(1, 4), default=1, help="Follow so many beginnings at a time.")
@click.option(
    "--out", type=PATH, help="Write a table: FILE.jsonl, FILE.csv or FILE.parquet.  [default: print]"
)
@url_option()
def translate(
    texts: tuple[str, ...], asked: str | None, model: str | None, beams: int, out: Path | None, url: str
) -> None:
    """Translate each Russian TEXT into English, a line for each; without one, every line of stdin.

    With --system or --model, texts of another pair of languages.

    What is doubtful, such as a number that a translation does not repeat, is said on stderr at the end, and
    which of the translations are rough guesses.
    With --out there is a row for each line that is not empty, of any number of them, and what was stopped
    goes on where it was when it is called again.

    \b
    gourmet translate "предоставляются полотенца ."
    gourmet translate < russian.txt > english.txt
    gourmet translate --out english.parquet < russian.txt
    """
    from gourmet.commands.bulk_table import generated_table
    from gourmet.commands.generating import answers, asks, system_for
    from gourmet.contracts import GeneratedText
    from gourmet.serving.connect import connect

    if not texts and sys.stdin.isatty():
        raise UsageError('name a text, as in gourmet translate "Я люблю чай.", or give a file by < FILE')
    with connect(url) as triton:
        info = triton.describe(model or system_for("text", asked).default_model)
    system = system_for("text", asked, info.system)
    ask = asks(system, info, url, {"beams": beams} if beams > 1 else {})
    if out:
        plan = {"beams": beams, "texts": texts}
        generated_table(
            _Texts(texts),
            info,
            ask,
            _bytes,
            out,
            made="translation",
            wanted=_TEXTS,
            plan=plan,
            doing="translating",
        )
        return
    lines = list(texts) or list(_read(sys.stdin.buffer, _MOST_LINES))
    there = [place for place, line in enumerate(lines) if line]
    examples = [partial(_bytes, lines[place]) for place in there]
    found: dict[int, str] = {}
    warnings: list[str] = []
    rough: list[int] = []
    kind = "text" if texts else "line"
    with bar("translating") as tick:
        for place, answer in zip(there, answers(ask, info, examples, wanted=_TEXTS), strict=True):
            where = f"{kind} {place + 1}"
            if not isinstance(answer, GeneratedText):
                raise UsageError(f"{where}: {answer}") from answer
            found[place] = answer.text
            if info.is_sure(answer) is False:
                rough.append(place + 1)
            if answer.warning:
                warnings.append(f"{where}: {answer.warning}")
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
    """Texts as they are given, or the lines of stdin, which is read once; empty ones are left out."""

    given: Sequence[str]
    column: str = "text"

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.given or _read(sys.stdin.buffer) if text)

    def count(self) -> int | None:
        return sum(1 for _ in self) if self.given else None


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _read(file: BinaryIO, most: int | None = None) -> Iterator[str]:
    for number in count(1) if most is None else range(1, most + 1):
        if not (line := file.readline(_LONGEST + 1)):
            return
        if len(line) > _LONGEST:
            raise UsageError(
                f"line {number} has more than {_LONGEST:,} bytes: a text has 2,000 characters at most"
            )
        yield _decoded(number, line)
    raise UsageError(f"there are more than {most:,} lines: give fewer at a time, or --out a table")


def _decoded(number: int, line: bytes) -> str:
    try:
        return line.decode().strip()
    except UnicodeDecodeError as exc:
        raise UsageError(f"line {number} is not UTF-8 from byte {exc.start} on: convert it first") from exc
