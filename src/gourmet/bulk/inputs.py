"""Which files are meant: named ones, those in folders or buckets, and those that a list or stdin names."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from gourmet.errors import UsageError
from gourmet.runtime.bounded_reading import open_regular, read_bytes
from gourmet.runtime.object_store import check_object_name, is_object, names_below, read_object

STDIN: Final = "-"
_LONGEST_NAME: Final = 4_096
T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """Their names, in an order that is the same each time, and never all in memory; stdin is read once."""

    given: Sequence[str]
    suffixes: Collection[str]
    column: str = "path"

    def __post_init__(self) -> None:
        for each in self.given:
            if is_object(each):
                check_object_name(each)
            elif "://" in each:
                raise UsageError(f"{each} is not a file here: copy what is there to a folder, and name that")
            elif each != STDIN and not Path(each).exists():
                raise UsageError(f"{each} does not exist: name a photo, a folder, or a list of them")

    def __iter__(self) -> Iterator[str]:
        for each in self.given:
            yield from self._of(each)

    def count(self) -> int | None:
        """How many there are; None where only reading stdin would tell."""
        return None if STDIN in self.given else sum(1 for _ in self)

    def _of(self, given: str) -> Iterator[str]:
        if given == STDIN:
            yield from _lines(given, sys.stdin.buffer)
        elif is_object(given) and not self._is_meant(given):
            yield from filter(self._is_meant, names_below(given))
        elif Path(given).is_dir():
            yield from self._below(given)
        elif self._is_meant(given):
            yield given
        else:
            try:
                with open_regular(Path(given)) as file:
                    yield from _lines(given, file)
            except OSError as exc:
                raise UsageError(f"the list {given} cannot be read: {exc.strerror}") from exc

    def _below(self, folder: str) -> Iterator[str]:
        for where, folders, names in os.walk(folder):
            folders.sort()
            yield from (f"{where}/{name}" for name in sorted(names) if self._is_meant(name))

    def _is_meant(self, name: str) -> bool:
        return Path(name).suffix.lower() in self.suffixes


def _lines(given: str, file: BinaryIO) -> Iterator[str]:
    """The names in a list, a line each; empty lines are skipped."""
    number = 0
    while line := file.readline(_LONGEST_NAME + 1):
        number += 1
        if len(line) > _LONGEST_NAME or b"\0" in line:
            what = "stdin" if given == STDIN else given
            raise UsageError(
                f"line {number} of {what} is not the name of a file: a list has one in each line"
            )
        if name := os.fsdecode(line.strip()):
            yield name


def read_input(name: str, max_bytes: int) -> bytes:
    """OSError where it cannot be read or is larger."""
    return read_object(name, max_bytes) if is_object(name) else read_bytes(Path(name), max_bytes)


def as_text(name: str) -> str:
    """A file's name for a table, which is UTF-8; what is not becomes a mark."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some
