"""`gourmet bench compare` and `list`: runs that were saved."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gourmet.commands.bench_output import table
from gourmet.measure import compare as comparing
from gourmet.measure import page, storage, tables


@click.command()
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("now", type=click.Path(exists=True, path_type=Path))
@click.option("--noise", default=5.0, show_default=True, help="Percent by which two runs may differ.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="An HTML page of it.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def compare(before: Path, now: Path, noise: float, save: Path | None, as_json: bool) -> None:
    """Compare two saved runs, folders or JSON files; fail where NOW is slower beyond noise."""
    first, second = storage.load(before), storage.load(now)
    pairs = comparing.compare(first, second, noise / 100)
    if as_json:
        keys = ("point", "before", "now", "throughput", "latency", "p95", "verdict")
        click.echo(
            json.dumps([dict(zip(keys, row, strict=True)) for row in tables.pairs(pairs)[1]], indent=1)
        )
    else:
        for words in comparing.differences(first, second):
            click.echo(f"differs in {words}")
        table(*tables.pairs(pairs))
    if save:
        save.write_text(page.comparison(first, second, pairs, noise / 100))
        click.echo(f"wrote {save}", err=True)
    comparing.refuse_slower(pairs, noise / 100)


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
def list_(as_json: bool, folder: Path | None) -> None:
    """The saved runs, the latest first."""
    found = storage.saved(folder or storage.DEFAULT)
    rows = [(str(path), each.when, each.title, str(len(each.points))) for path, each in found]
    if as_json:
        keys = ("folder", "when", "title", "points")
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=1))
    elif rows:
        table(("folder", "when", "title", "points"), rows)
    else:
        click.echo(
            f"no saved runs under {folder or storage.DEFAULT}: make one with `gourmet bench run MODEL`"
        )
