"""Asks about inputs that have no row yet, keeps the rows, and makes a table of them at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from gourmet.bulk.inputs import as_text, in_parts
from gourmet.bulk.journal import Journal, Row
from gourmet.errors import UsageError, printable
from gourmet.tasks.checking import in_threads
from gourmet.training.task import Tick

# Makes the rows of some inputs, in one of several threads.
AskRows = Callable[[Sequence[str]], list[Row]]


class NamedInputs(Protocol):
    """Inputs by their names or texts, in the same order each time."""

    @property
    def column(self) -> str:
        """Of a row, where the name of its input stands."""

    def __iter__(self) -> Iterator[str]: ...

    def count(self) -> int | None:
        """How many there are; None where only reading all would tell."""


@dataclass(frozen=True)
class HowMany:
    together: int  # inputs of a request
    threads: int


def answered(ask: AskRows, names: Iterable[str], how: HowMany) -> Iterator[list[Row]]:
    """The rows in the order of the inputs, some at a time."""
    yield from in_threads(ask, in_parts(names, how.together), how.threads)


def run(inputs: NamedInputs, journal: Journal, ask: AskRows, how: HowMany, tick: Tick) -> None:
    """Add a row for each input that has none; what is raised leaves those that are there."""
    total, began, before = inputs.count(), time.monotonic(), journal.rows
    for rows in answered(ask, _without_row(inputs, journal), how):
        journal.add(rows)
        rate = (journal.rows - before) / max(1e-9, time.monotonic() - began)
        of_all = f"/{total:,}" if total is not None else ""
        left = f" · {(total - journal.rows) / rate:,.0f} s left" if total is not None else ""
        tick(journal.rows / total if total else 0.0, f"{journal.rows:,}{of_all} · {rate:,.0f}/s{left}")
    if total is not None and journal.rows != total:
        raise UsageError(
            f"there were {total:,} inputs at the start and {journal.rows:,} now: they changed meanwhile; "
            f"remove {journal.path} and start again"
        )


def _without_row(inputs: NamedInputs, journal: Journal) -> Iterator[str]:
    """Those behind the ones of the kept rows, which have to be the same as then."""
    names = iter(inputs)
    for number, row in enumerate(islice(journal, journal.rows), 1):
        name = next(names, None)
        if name is None or as_text(name) != row.get(inputs.column):
            raise UsageError(
                f"row {number:,} of {journal.path} is of {printable(str(row.get(inputs.column)))}, where now "
                f"{printable(name or 'nothing')} is asked about: give the inputs of that run, or remove it"
            )
    yield from names
