"""The inputs of a run: files by name, in folders, in a list or from stdin; or texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeVar

from gourmet.errors import UsageError
from gourmet.pictures.header import SUFFIXES

STDIN: Final = "-"
_MAX_NAME_BYTES: Final = 4_096
T = TypeVar("T")


class Inputs(Protocol):
    """Inputs as names of files or as texts, always in the same order."""

    @property
    def column(self) -> str:
        """The column with the input."""

    @property
    def sources(self) -> Sequence[str]:
        """The arguments of the command line."""

    @property
    def nothing(self) -> str:
        """The message of a run without inputs."""

    def __iter__(self) -> Iterator[str]: ...

    def count(self) -> int | None:
        """Return the number of inputs; None if it is unknown before stdin is read."""


@dataclass(frozen=True)
class Photos:
    """Names of files, never all in memory at a time. Stdin is read once."""

    sources: Sequence[str]
    column: str = "path"
    nothing: str = f"no photos are there: their names end in {', '.join(sorted(SUFFIXES))}"

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
            yield from self._lines_of_source(source)

    def count(self) -> int | None:
        return None if STDIN in self.sources else sum(1 for _ in self)

    def _lines_of_source(self, source: str) -> Iterator[str]:
        if source == STDIN:
            yield from _lines(source, sys.stdin.buffer)
        elif Path(source).is_dir():
            yield from self._below(source)
        elif _is_photo(source):
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
            yield from (f"{parent}/{name}" for name in sorted(names) if _is_photo(name))


def _is_photo(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


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


@dataclass(frozen=True)
class Texts:
    """The texts of the command line, or the lines of stdin, without empty ones."""

    sources: Sequence[str]
    column: str = "text"
    nothing: str = "no texts are there: name some, or write them to stdin, a line each"

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.sources or text_lines(sys.stdin.buffer) if text)

    def count(self) -> int | None:
        """Return the number of texts, or None where stdin is a pipe, which can be read only once."""
        if self.sources:
            return sum(1 for _ in self)
        if not sys.stdin.buffer.seekable():
            return None
        position = sys.stdin.buffer.tell()
        number = sum(1 for _ in self)
        sys.stdin.buffer.seek(position)
        return number


def text_lines(file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            yield line.decode().strip()
        except UnicodeDecodeError as exc:
            raise UsageError(
                f"line {number} is not UTF-8 from byte {exc.start} on: convert it first"
            ) from exc


def as_text(name: str) -> str:
    """Return a file's name as UTF-8 text for a table; other bytes become a question mark."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
