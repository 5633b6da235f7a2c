"""`gourmet bench`: speed that can be believed, answers checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from gourmet.commands.bench_run import run
from gourmet.commands.bench_saved import compare, list_
from gourmet.commands.bench_scenario import foundation, scenario
from gourmet.errors import UsageError

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


for command in (run, scenario, compare, list_, foundation, peers):
    bench.add_command(command)
