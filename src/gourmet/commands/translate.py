"""`gourmet translate`: Russian texts through the running stack, as arguments or a line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import click

from gourmet.commands.options import url_option
from gourmet.commands.progress import bar
from gourmet.contracts import Generation
from gourmet.errors import UsageError
from gourmet.systems import registry

# Texts of a request, and requests at a time: enough for the served loop to be full.
_TEXTS = 16
_REQUESTS = 2
_ANSWERS_WITHIN_S = 600.0
_LONGEST = 64_000
_MOST_LINES = 1_000_000


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--model", help="Ask this model.  [default: the system's own]")
@click.option("--beams", type=click.IntRange(1, 4), default=1, help="Follow so many beginnings at a time.")
@url_option()
def translate(texts: tuple[str, ...], model: str | None, beams: int, url: str) -> None:
    """Translate each Russian TEXT into English, a line for each; without one, every line of stdin.

    \b
    gourmet translate "предоставляются полотенца ."
    gourmet translate < russian.txt > english.txt
    """
    import numpy as np

    from gourmet.client.errors import InvalidRequest
    from gourmet.serving.connect import connect
    from gourmet.tasks.checking import in_threads

    if not texts and sys.stdin.isatty():
        raise UsageError('name a text, as in gourmet translate "Я люблю чай.", or give a file by < FILE')
    lines = list(texts) or list(_read(sys.stdin.buffer))
    there = [place for place, line in enumerate(lines) if line]
    system = _system()
    with connect(url) as triton:
        info = triton.describe(model or system.default_model)
    options = {"beams": beams} if beams > 1 else {}
    size = _TEXTS if info.max_batch_size else 1
    batches = [there[first : first + size] for first in range(0, len(there), size)]

    def ask(places: Sequence[int]) -> list[str]:
        rows = [
            system.request_inputs(lines[place].encode(errors="surrogateescape"), info, options)
            for place in places
        ]
        together = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        try:
            with connect(url, _ANSWERS_WITHIN_S) as triton:
                outputs = triton.infer(info.name, together).outputs
        except InvalidRequest as exc:
            if len(places) > 1:  # which of them is it?
                return [answer for place in places for answer in ask([place])]
            raise UsageError(f"{'text' if texts else 'line'} {places[0] + 1}: {exc}") from exc
        split = [{name: each[row : row + 1] for name, each in outputs.items()} for row in range(len(places))]
        return [system.generated(each, info).text for each in split]

    answers: dict[int, str] = {}
    with bar("translating") as tick:
        for places, found in zip(batches, in_threads(ask, batches, _REQUESTS), strict=True):
            answers.update(zip(places, found, strict=True))
            tick(len(answers) / len(there), f"{len(answers)}/{len(there)}")
    for place in range(len(lines)):
        click.echo(answers.get(place, ""))


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


def _system() -> Generation:
    """The only one whose models answer a text with a text."""
    systems = registry.load_all().values()
    found = [each for each in systems if isinstance(each, Generation) and each.example_kind == "text"]
    if len(found) != 1:
        raise UsageError(f"there are {len(found)} systems that answer texts; one is needed")
    return found[0]
