"""`gourmet bench`: speed that can be believed, answers checked; runs that were saved, and other programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from gourmet.commands.bench_options import table
from gourmet.commands.bench_run import run
from gourmet.commands.bench_scenario import foundation, scenario
from gourmet.errors import UsageError
from gourmet.measure import compare as comparing
from gourmet.measure import page, storage, tables

PEERS: Final = Path(__file__).resolve().parents[3] / "benchmarks" / "peers"


@click.group()
def bench() -> None:
    """Measure speed against a stated baseline, answers checked.

    A figure is reported only if every answer was the right one, Triton counted the rows that were sent,
    Little's law holds, the windows agree, nothing failed and the client had time to spare.
    """


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def peers(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Ours, FastAPI, LitServe, BentoML and no server at all, on the same photos (benchmarks/peers)."""
    if not PEERS.is_dir():
        raise UsageError(f"no {PEERS} found: run this in a checkout")
    ctx.exit(subprocess.run([sys.executable, "-P", str(PEERS), *arguments], check=False).returncode)


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


for command in (run, scenario, compare, list_, foundation, peers):
    bench.add_command(command)
