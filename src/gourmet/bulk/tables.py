"""Rows as a file: JSON lines, CSV or Parquet, by how its name ends. None is held in memory as a whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.bulk.inputs import in_parts
from gourmet.bulk.journal import Columns, Row
from gourmet.errors import UsageError
from gourmet.reports.table import spreadsheet_cell
from gourmet.runtime.files import written_aside
from gourmet.runtime.optional import optional

# Rows that lie in memory at a time.
_ROWS: Final = 10_000


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
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, dict) else spreadsheet_cell(str(value))


def _parquet(rows: Iterable[Row], path: Path, columns: Columns) -> None:
    arrow, parquet = _pyarrow(), _pyarrow("pyarrow.parquet")
    types = {str: arrow.string(), float: arrow.float32(), bool: arrow.bool_()}

    def kind(column: type | Sequence[str]) -> Any:
        if isinstance(column, type):
            return types[column]
        return arrow.struct([(name, arrow.float32()) for name in column])

    schema = arrow.schema([(name, kind(column)) for name, column in columns.items()])
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for some in in_parts(rows, _ROWS):
            writer.write_batch(arrow.RecordBatch.from_pylist(some, schema=schema))


def _pyarrow(module: str = "pyarrow") -> Any:
    return optional(module, "Parquet", "parquet.txt", ", or choose .jsonl or .csv")


_FORMATS: Final[Mapping[str, Callable[[Iterable[Row], Path, Columns], None]]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}


def check_table(path: Path) -> None:
    """Raise UsageError unless a table can be written there that is not there yet."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"{path} ends in none of {', '.join(_FORMATS)}, by which its format is chosen")
    for written in (path, path.with_suffix(".html")):
        if written.exists():
            raise UsageError(f"{written} is there already: name another file, or remove it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}: make it, or name another file")
    if path.suffix == ".parquet":
        _pyarrow()


def write_table(rows: Iterable[Row], path: Path, columns: Columns) -> None:
    """It is there whole or not at all."""
    with written_aside(path) as aside:
        _FORMATS[path.suffix](rows, aside, columns)
