"""The rows of an unfinished run, beside where its table will be: a line each, in the order of the inputs.

It is read and written a line at a time, since there may be millions: `gourmet.result_store` holds all of its
results in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from gourmet.errors import GourmetError, UsageError
from gourmet.runtime.bounded_reading import in_short, what_it_says

Row = dict[str, Any]
# What a column holds: a type, or for a number for each of several names, those.
Columns = Mapping[str, "type | Sequence[str]"]
SUFFIX: Final = ".part"
# No row is as long as this.
_LONGEST: Final = 1 << 20
_LARGEST: Final = 1e15  # of numbers, which a table has in 32 bits


class Journal:
    def __init__(self, path: Path, plan: Mapping[str, Any], columns: Columns) -> None:
        """`plan` is what tells this run from others; raise UsageError where `path` has another's rows."""
        self.path = path
        self._columns = columns
        self._plan = json.loads(json.dumps(plan))
        self._file = self._opened()
        try:
            self.rows = self._read()
        except OSError as exc:
            self.close()
            raise self._unwritten(exc) from exc
        except ValueError as exc:
            self.close()
            raise UsageError(f"{path} has no rows of this run ({in_short(exc)}): remove it") from exc

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            file.readline()
            for number, line in enumerate(file, 1):
                try:
                    with what_it_says():
                        row = json.loads(line)
                        _check(row, self._columns)
                except ValueError as exc:
                    raise UsageError(
                        f"row {number:,} of {self.path} is of no run ({in_short(exc)}): remove it"
                    ) from exc
                yield row

    def add(self, rows: list[Row]) -> None:
        lines = b"".join(map(self._line_of, rows))
        try:
            self._file.write(lines)
            self._file.flush()
        except OSError as exc:
            raise self._unwritten(exc) from exc
        self.rows += len(rows)

    def _line_of(self, row: Row) -> bytes:
        """What is read again at the end; GourmetError for what would be refused there."""
        try:
            _check(row, self._columns)
            line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
            if len(line) > _LONGEST:
                raise ValueError("it is longer than any row")
        except ValueError as exc:
            raise GourmetError(f"a row cannot be kept ({in_short(exc)})") from exc
        return line

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which was said
            self._file.close()

    def remove(self) -> None:
        self.path.unlink()
        self.close()

    def _unwritten(self, error: OSError) -> GourmetError:
        return GourmetError(f"{self.path} cannot be written ({error.strerror}): make room there")

    def _opened(self) -> IO[bytes]:
        """Locked until it is closed. A link is not followed: what is written would be written elsewhere."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            file = os.fdopen(os.open(self.path, flags, 0o666), "r+b")
        except OSError as exc:
            raise UsageError(f"{self.path} cannot be written: {exc.strerror}") from exc
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UsageError(f"{self.path} is written by another run: wait for it, or end it") from None
        return file

    def _read(self) -> int:
        """Count the rows; what was cut off by a crash is dropped."""
        with what_it_says():
            if header := self._line():
                plan = json.loads(header)["plan"]
                changed = {name for name in plan | self._plan if plan.get(name) != self._plan.get(name)}
                if changed:
                    raise ValueError(f"they are of another {', '.join(sorted(changed))}")
            else:
                self._file.write(json.dumps({"plan": self._plan}).encode() + b"\n")
            count = 0
            while self._line():
                count += 1
        self._file.truncate()
        return count

    def _line(self) -> bytes:
        """The next whole one; before what is none, and there the file's place stays."""
        place = self._file.tell()
        line = self._file.readline(_LONGEST + 1)
        if len(line) > _LONGEST:
            raise ValueError("a line is longer than any row")
        if not line.endswith(b"\n"):
            self._file.seek(place)
            return b""
        return line


def _check(row: Row, columns: Columns) -> None:
    """Raise ValueError, or what `what_it_says` says, unless it has these columns and kinds of values."""
    if row.keys() != columns.keys():
        raise ValueError("it has other columns")
    for name, kind in columns.items():
        if row[name] is not None and not _fits(row[name], kind):
            raise ValueError(f"its {name} is {row[name]!r:.80}")


def _fits(value: Any, kind: type | Sequence[str]) -> bool:
    """Whether a table of any format can have it, which then says what it says."""
    if not isinstance(kind, type):
        return value.keys() == {*kind} and all(each is None or _fits(each, float) for each in value.values())
    if kind is float:
        return isinstance(value, float | int) and abs(value) <= _LARGEST  # which is not true of nan
    if isinstance(value, str):
        value.encode()  # half a character is refused
    return isinstance(value, kind)
