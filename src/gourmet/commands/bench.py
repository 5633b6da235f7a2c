"""`gourmet bench`: speed that can be believed, answers checked."""

from __future__ import annotations

import click

from gourmet.commands.bench_foundation import foundation
from gourmet.commands.bench_peers import peers
from gourmet.commands.bench_run import run
from gourmet.commands.bench_saved import compare, list_
from gourmet.commands.bench_scenario import scenario


@click.group()
def bench() -> None:
    """Measure speed against a stated baseline, answers checked.

    A figure is reported only if every answer was the right one, Triton counted the rows that were sent,
    Little's law holds, the windows agree, nothing failed and the client had time to spare.
    """


for command in (run, scenario, compare, list_, foundation, peers):
    bench.add_command(command)
