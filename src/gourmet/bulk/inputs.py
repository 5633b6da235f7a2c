"""Which files are meant: named ones, those in folders, and those that a list or stdin names."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeVar

from gourmet.errors import UsageError

STDIN: Final = "-"
_LONGEST_NAME: Final = 4_096
T = TypeVar("T")


class NamedInputs(Protocol):
    """Inputs by their names or texts, in the same order each time."""

    @property
    def column(self) -> str:
        """The column of a row that has the name of its input."""

    def __iter__(self) -> Iterator[str]: ...

    def count(self) -> int | None:
        """Return how many there are; None if only reading stdin would tell."""


@dataclass(frozen=True)
class Inputs:
    """Names of files, never all in memory. Stdin is read once."""

    given: Sequence[str]
    suffixes: Collection[str]
    column: str = "path"

    def __post_init__(self) -> None:
        for name in self.given:
            if "://" in name:
                raise UsageError(
                    f"{name} is not a file here: copy what is there to a folder (`rclone copy`, "
                    "`aws s3 sync`), and name that"
                )
            if name != STDIN and not Path(name).exists():
                raise UsageError(f"{name} does not exist: name a photo, a folder, or a list of them")

    def __iter__(self) -> Iterator[str]:
        for name in self.given:
            yield from self._of(name)

    def count(self) -> int | None:
        return None if STDIN in self.given else sum(1 for _ in self)

    def _of(self, given: str) -> Iterator[str]:
        if given == STDIN:
            yield from _lines(given, sys.stdin.buffer)
        elif Path(given).is_dir():
            yield from self._below(given)
        elif self._is_meant(given):
            yield given
        else:
            try:
                with Path(given).open("rb") as file:
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


def as_text(name: str) -> str:
    """A file's name for a table, which is UTF-8; other bytes become a mark."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
