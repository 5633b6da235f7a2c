"""`gourmet translate`: texts through a translator of the running stack, as arguments or a line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import click

from gourmet.commands.options import url_option
from gourmet.commands.progress import bar
from gourmet.errors import UsageError, printable

# Texts of a request.
_TEXTS = 16
_LONGEST = 64_000
_MOST_LINES = 1_000_000


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--system", "asked", help="Translate by this system.  [default: the model's, or Russian]")
@click.option("--model", help="Ask this model.  [default: the system's own]")
@click.option("--beams", type=click.IntRange(1, 4), default=1, help="Follow so many beginnings at a time.")
@url_option()
def translate(texts: tuple[str, ...], asked: str | None, model: str | None, beams: int, url: str) -> None:
    """Translate each Russian TEXT into English, a line for each; without one, every line of stdin.

    With --system or --model, texts of another pair of languages.

    What is doubtful, such as a number that a translation does not repeat, is said on stderr at the end.

    \b
    gourmet translate "предоставляются полотенца ."
    gourmet translate < russian.txt > english.txt
    """
    from gourmet.commands.generating import answers, system_for
    from gourmet.contracts import GeneratedText
    from gourmet.serving.connect import connect

    if not texts and sys.stdin.isatty():
        raise UsageError('name a text, as in gourmet translate "Я люблю чай.", or give a file by < FILE')
    lines = list(texts) or list(_read(sys.stdin.buffer))
    there = [place for place, line in enumerate(lines) if line]
    with connect(url) as triton:
        info = triton.describe(model or system_for("text", asked).default_model)
    system = system_for("text", asked, info.system)
    options = {"beams": beams} if beams > 1 else {}
    examples = [partial(lines[place].encode, errors="surrogateescape") for place in there]
    found: dict[int, str] = {}
    warnings: list[str] = []
    with bar("translating") as tick:
        for place, answer in zip(
            there, answers(system, info, url, examples, options, together=_TEXTS), strict=True
        ):
            where = f"{'text' if texts else 'line'} {place + 1}"
            if not isinstance(answer, GeneratedText):
                raise UsageError(f"{where}: {answer}") from answer
            found[place] = answer.text
            if answer.warning:
                warnings.append(f"{where}: {answer.warning}")
            tick(len(found) / len(there), f"{len(found)}/{len(there)}")
    for place in range(len(lines)):
        click.echo(printable(found.get(place, "")))  # the server may be anybody's
    for warning in warnings:
        click.echo(printable(f"Warning: {warning}"), err=True)


def _read(file: BinaryIO) -> Iterator[str]:
    for number in range(1, _MOST_LINES + 1):
        if not (line := file.readline(_LONGEST + 1)):
            return
        if len(line) > _LONGEST:
            raise UsageError(
                f"line {number} has more than {_LONGEST:,} bytes: a text has 2,000 characters at most"
            )
        yield _decoded(number, line)
    raise UsageError(f"there are more than {_MOST_LINES:,} lines: give fewer at a time")


def _decoded(number: int, line: bytes) -> str:
    try:
        return line.decode().strip()
    except UnicodeDecodeError as exc:
        raise UsageError(f"line {number} is not UTF-8 from byte {exc.start} on: convert it first") from exc
