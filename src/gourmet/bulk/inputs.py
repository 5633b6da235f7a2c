"""The inputs of a run: named files, the files in folders, and files named by a list or stdin."""

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
_MAX_NAME_BYTES: Final = 4_096
T = TypeVar("T")


class NamedInputs(Protocol):
    """Inputs as names or texts, always in the same order."""

    @property
    def column(self) -> str:
        """The column with the name of the input."""

    def __iter__(self) -> Iterator[str]: ...

    def count(self) -> int | None:
        """Return the number of inputs; None if it is unknown before stdin is read."""


@dataclass(frozen=True)
class Inputs:
    """Names of files, never all in memory at a time. Stdin is read once."""

    sources: Sequence[str]
    suffixes: Collection[str]
    column: str = "path"

    def __post_init__(self) -> None:
        for source in self.sources:
            if "://" in source:
                raise UsageError(
                    f"{source} is not a local file: copy the files to a folder (`rclone copy`, "
                    "`aws s3 sync`), and name the folder"
                )
            if source != STDIN and not Path(source).exists():
                raise UsageError(f"{source} does not exist: name a photo, a folder, or a list of them")

    def __iter__(self) -> Iterator[str]:
        for source in self.sources:
            yield from self._of(source)

    def count(self) -> int | None:
        return None if STDIN in self.sources else sum(1 for _ in self)

    def _of(self, source: str) -> Iterator[str]:
        if source == STDIN:
            yield from _lines(source, sys.stdin.buffer)
        elif Path(source).is_dir():
            yield from self._below(source)
        elif self._has_suffix(source):
            yield source
        else:
            try:
                with Path(source).open("rb") as file:
                    yield from _lines(source, file)
            except OSError as exc:
                raise UsageError(f"the list {source} cannot be read: {exc.strerror}") from exc

    def _below(self, folder: str) -> Iterator[str]:
        for parent, folders, names in os.walk(folder):
            folders.sort()
            yield from (f"{parent}/{name}" for name in sorted(names) if self._has_suffix(name))

    def _has_suffix(self, name: str) -> bool:
        return Path(name).suffix.lower() in self.suffixes


def _lines(source: str, file: BinaryIO) -> Iterator[str]:
    """Yield the names in a list, one per line; empty lines are skipped."""
    for number, line in enumerate(file, 1):
        if len(line) > _MAX_NAME_BYTES or b"\0" in line:
            where = "stdin" if source == STDIN else source
            raise UsageError(
                f"line {number} of {where} is not a file name: a list must have one file name per line"
            )
        if name := os.fsdecode(line.strip()):
            yield name


def as_text(name: str) -> str:
    """Return a file's name as UTF-8 text for a table; other bytes become a question mark."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
