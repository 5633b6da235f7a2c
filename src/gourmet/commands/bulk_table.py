"""A table of many answers, for the verbs that make one: resumed, written whole, and what to say meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from gourmet.bulk.journal import SUFFIX, Columns, Journal
from gourmet.bulk.run import AskRows, HowMany, NamedInputs, run
from gourmet.bulk.tables import write_table
from gourmet.commands.generating import GeneratingRun
from gourmet.commands.progress import bar
from gourmet.commands.report_output import Stopped
from gourmet.errors import GourmetError, UsageError

_GOES_ON = "the same command goes on from there"


@contextmanager
def table_of(
    inputs: NamedInputs,
    ask: AskRows,
    out: Path,
    columns: Columns,
    how: HowMany,
    *,
    plan: Mapping[str, Any],
    doing: str,
    none_there: str,
) -> Iterator[Journal]:
    """Ask about all that have no row of this `plan` yet, and write the table; the block has its rows."""
    with closing(Journal(out.with_name(out.name + SUFFIX), plan, columns)) as journal:
        if journal.rows:
            click.echo(f"going on after {journal.rows:,} rows of {journal.path}", err=True)
        try:
            with bar(doing) as tick:
                run(inputs, journal, ask, how, tick)
        except KeyboardInterrupt:
            raise Stopped(f"stopped after {journal.rows:,} rows; {_GOES_ON}") from None
        except UsageError:
            raise
        except GourmetError as exc:
            raise GourmetError(f"{exc}\n       {journal.rows:,} rows are kept; {_GOES_ON}") from exc
        if not journal.rows:
            journal.remove()
            raise UsageError(none_there)
        try:
            write_table(journal, out, columns)
            with _or_not_there(out):
                yield journal
        except OSError as exc:
            where = f"{exc.filename or out} cannot be written ({exc.strerror}): make room there"
            raise GourmetError(f"{where}\n       {journal.rows:,} rows are kept; {_GOES_ON}") from exc
        journal.remove()


@contextmanager
def _or_not_there(table: Path) -> Iterator[None]:
    """What follows on a table belongs to it: without that the same command would find the table there."""
    try:
        yield
    except BaseException:
        table.unlink()
        raise


def generated_table(
    inputs: NamedInputs, by: GeneratingRun, out: Path, *, plan: Mapping[str, Any], doing: str
) -> None:
    """A table of texts that a model made, and what is said of it at the end."""
    model = by.made.model.name
    asking = table_of(
        inputs,
        by.ask,
        out,
        by.made.columns,
        by.how,
        plan={"model": model, **plan},
        doing=doing,
        none_there=f"there is nothing to ask {model} about",
    )
    failed = total = 0
    with asking as rows:
        for row in rows:
            total += 1
            failed += bool(row["error"])
    click.echo(f"{total - failed:,} of {total:,} have an answer", err=True)
    click.echo(f"table in {out}", err=True)
