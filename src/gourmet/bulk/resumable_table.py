"""Write a table of many answers. Each row is stored at once, so that an interrupted run resumes.

Rows of an unfinished run are JSON lines in FILE.part, in the order of the inputs. At the end they become a
table: JSON lines or CSV, by its suffix. Neither file is ever in memory as a whole.
"""

from __future__ import annotations

import csv
import fcntl
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from gourmet.bulk.inputs import Inputs, as_text, in_parts
from gourmet.errors import GourmetError, UsageError, printable
from gourmet.evaluation.checking import in_threads
from gourmet.progress import ReportProgress
from gourmet.reports.table import spreadsheet_cell
from gourmet.served.files import written_aside

Row = dict[str, Any]
# The type of each column, or the names of its numbers.
Columns = Mapping[str, "type | Sequence[str]"]
SUFFIX: Final = ".part"
_HEADER: Final = b'{"plan": '


class AskedModel(Protocol):
    """A served model that answers inputs with rows. Several threads may call it."""

    together: int  # inputs of a request
    in_flight: int  # requests at a time

    @property
    def columns(self) -> Columns: ...

    @property
    def plan(self) -> Mapping[str, Any]:
        """What identifies the model and its options: a run with another plan is another run."""

    def rows(self, names: Sequence[str]) -> list[Row]: ...

    def close(self) -> None: ...


def answered(model: AskedModel, names: Iterable[str]) -> Iterator[list[Row]]:
    """Yield the rows in the order of the inputs, request by request."""
    yield from in_threads(model.rows, in_parts(names, model.together), model.in_flight)


class Journal:
    """The rows of an unfinished run."""

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        """Open the file; `plan` identifies the run. Raise UsageError if `path` has rows of another one."""
        self.path = path
        self._plan = json.loads(json.dumps(plan))
        try:
            self._file = path.open("a+b")
        except OSError as exc:
            raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            self.rows = self._count()
        except BlockingIOError:
            self._file.close()
            raise UsageError(f"another run writes {path}: wait for it, or end it") from None
        except OSError as exc:
            self.close()
            raise self._unwritten(exc) from exc
        except (LookupError, TypeError, ValueError) as exc:
            self.close()
            raise UsageError(f"{path} cannot be resumed ({exc}): remove it, or name another file") from exc

    def _count(self) -> int:
        header = self._file.readline()
        if not header.endswith(b"\n") and _HEADER.startswith(header[: len(_HEADER)]):
            self._file.truncate(0)  # the file is new, or a full disk truncated it
            self._file.write(json.dumps({"plan": self._plan}).encode() + b"\n")
            self._file.flush()
        else:
            plan = json.loads(header)["plan"]
            changed = sorted(name for name in plan | self._plan if plan.get(name) != self._plan.get(name))
            if changed:
                raise ValueError(f"it was begun with other {' and '.join(changed)}")
        rows, end = 0, self._file.tell()
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            rows, end = rows + 1, end + len(line)
        self._file.truncate(end)  # removes a line that a crash truncated
        return rows

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            file.readline()
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError as exc:
                    raise UsageError(f"row {number:,} of {self.path} is corrupt: remove it") from exc

    def add(self, rows: list[Row]) -> None:
        try:
            self._file.write(
                "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(errors="replace")
            )
            self._file.flush()
        except OSError as exc:
            raise self._unwritten(exc) from exc
        self.rows += len(rows)

    def without_row(self, inputs: Inputs) -> Iterator[str]:
        """Yield the inputs without a row; raise UsageError if the other inputs differ from the rows."""
        names = iter(inputs)
        for number, row in enumerate(islice(self, self.rows), 1):
            name = next(names, None)
            if name is None or as_text(name) != row.get(inputs.column):
                stored, current = str(row.get(inputs.column)), name or "missing"
                raise UsageError(
                    f"row {number:,} of {self.path} is about {printable(stored)}, but the input is "
                    f"{printable(current)}: name the inputs of that run, or remove the file"
                )
        yield from names

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:  # a full disk, which was reported
            return

    def remove(self) -> None:
        self.path.unlink()
        self.close()

    def _unwritten(self, error: OSError) -> GourmetError:
        return GourmetError(f"{self.path} cannot be written ({error.strerror}): free disk space")


def answer_all(inputs: Inputs, journal: Journal, model: AskedModel, tick: ReportProgress) -> None:
    """Add a row for each input that has none. After an error, the rows so far stay in the journal."""
    total, began, before = inputs.count(), time.monotonic(), journal.rows
    for rows in answered(model, journal.without_row(inputs)):
        journal.add(rows)
        rate = (journal.rows - before) / max(1e-9, time.monotonic() - began)
        of_all = f"/{total:,}" if total is not None else ""
        left = f" · {(total - journal.rows) / rate:,.0f} s left" if total is not None else ""
        tick(journal.rows / total if total else 0.0, f"{journal.rows:,}{of_all} · {rate:,.0f}/s{left}")


def _jsonl(rows: Iterable[Row], path: Path, _columns: Columns) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _csv(rows: Iterable[Row], path: Path, columns: Columns) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows([_cell(row.get(name)) for name in columns] for row in rows)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"  # as in JSON
    return spreadsheet_cell(value) if isinstance(value, str) else json.dumps(value)


_FORMATS: Final[Mapping[str, Callable[[Iterable[Row], Path, Columns], None]]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
}


def check_table(path: Path) -> None:
    """Raise UsageError unless a new table can be written to `path`."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"{path} must end in one of {', '.join(_FORMATS)}, which choose its format")
    for written in (path, path.with_suffix(".html")):
        if written.exists():
            raise UsageError(f"{written} exists already: name another file, or remove it")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist: create it, or name another file")


def write_table(rows: Iterable[Row], path: Path, columns: Columns) -> None:
    """Write a table atomically."""
    with written_aside(path) as aside:
        _FORMATS[path.suffix](rows, aside, columns)
