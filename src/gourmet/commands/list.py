"""`gourmet list`: list the systems, their models and versions, and which of them serve."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gourmet.commands.options import asked_stack, json_option, repositories_option, url_option
from gourmet.errors import echo
from gourmet.reports.table import columns
from gourmet.stack.overview import ListedVersion, listed

_HEADINGS = ("system", "model", "version", "state", "deployed", "by", "MB", "MB in memory", "requests")


@click.command()
@repositories_option(found=True)
@url_option("Ask this Triton what it serves.  [default: the running stack's]", required=False)
@click.option("--all", "study", is_flag=True, help="List models for study, and parts of other models, too.")
@json_option
def list(repositories: tuple[Path, ...], url: str | None, study: bool, as_json: bool) -> None:
    """List systems, models and versions: which serves, when and from where it was deployed, its size.

    Memory and requests are counted since the stack started, or the model was loaded again.
    """
    stack = asked_stack()
    rows = listed(repositories, url or (stack.http_url if stack else None))
    if as_json:
        echo(json.dumps([vars(row) for row in rows], indent=2))
        return
    hidden = {row.model for row in rows if row.study and not row.reason and not study}
    rows = [row for row in rows if row.model not in hidden]
    echo(columns([_HEADINGS, *map(_cells, rows)]))
    if hidden:
        echo(f"{len(hidden)} models for study are not listed; --all lists them")
    for row in rows:
        if row.reason:
            name = f"{row.model}/{row.version}" if row.version else row.model or row.system
            echo(f"{name} is {row.state}: {' '.join(row.reason.split())}")


def _cells(row: ListedVersion) -> tuple[str, ...]:
    def megabytes(size: int | None) -> str:
        return "–" if size is None else f"{size / 1e6:.1f}"

    when = row.deployed[:16].replace("T", " ")
    requests = "–" if row.requests is None else str(row.requests)
    texts = (row.system, row.model, str(row.version or ""), row.state, when, row.by)
    return (*texts, megabytes(row.bytes), megabytes(row.memory_bytes), requests)
