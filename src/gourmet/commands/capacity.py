"""`gourmet capacity`: what many requests take, from what one costs here."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import click

from gourmet.commands.bench_options import command_line, measuring, table
from gourmet.commands.classify import usual_model
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND, POSITIVE, goal, levels
from gourmet.errors import UsageError
from gourmet.measure import capacity as planning
from gourmet.measure import storage, sweep, validity
from gourmet.measure.capacity import CapacityGoal
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import Bench
from gourmet.measure.task import Addresses, MeasureOptions
from gourmet.serving.connect import connect
from gourmet.systems import registry

_MOSTLY: Final = 0.75
_ABOVE_ZERO: Final = click.FloatRange(0, min_open=True)


@click.command()
@click.option(
    "--rate", "rates", type=levels, help="Requests a second to plan for, besides 10, 1,000 and 100,000."
)
@click.option("--p99", "p99_us", type=goal, default="200ms", help="Highest p99 that is allowed.")
@click.option("--system", help="Plan for this system's model.  [default: the one that classifies photos]")
@click.option("--model", help="Plan for this model.")
@click.option("--cores", default=8, type=POSITIVE, help="Cores of a node.")
@click.option("--price", default=0.05, type=_ABOVE_ZERO, help="Price of a core for an hour.")
@click.option("--gigabits", default=10.0, type=_ABOVE_ZERO, help="Gbit a second that one address carries.")
@click.option(
    "--reads",
    default=5500.0,
    type=_ABOVE_ZERO,
    help="Reads a second of an object store's prefix, where inputs come from one.",
)
@click.option(
    "--from", "stored", type=FOUND, help="Take a saved run of `gourmet bench` instead of measuring."
)
@measuring
def capacity(
    rates: tuple[float, ...] | None,
    p99_us: int,
    system: str | None,
    model: str | None,
    stored: Path | None,
    target: Addresses,
    options: MeasureOptions,
    save: Path | None,
    as_json: bool,
    **node: float,
) -> None:
    """Say what 10, 1,000 and 100,000 requests a second take: nodes, memory, network and money.

    The cost of a request is measured on the running stack, through the web app where that takes the model's
    inputs: by one request at a time, and by as many as keep all instances busy. A simulated queue says how
    busy a node may be before its p99 is above --p99.

    \b
    gourmet capacity --rate 1000 --p99 200ms --price 0.04
    gourmet capacity --system translator --p99 1s
    gourmet capacity --from runs/bench/20261125-… --cores 16
    """
    wanted = tuple(sorted({*CapacityGoal.rates, *(rates or ())}))
    aim = CapacityGoal(p99_us / 1000, wanted, **node)  # type: ignore[arg-type]
    if stored:
        bench = storage.load(stored)
    else:
        asked = model or (registry.load(system).default_model if system else usual_model())
        bench = _measured(asked, target, options)
    cost = planning.cost_of(bench)
    if cost.busy < _MOSTLY:
        click.echo(
            f"{cost.busy:.0%} of the cores were at work for it at most: where other processes had the rest, "
            "a quieter machine needs fewer nodes",
            err=True,
        )
    made = planning.plan(cost, aim)
    picture = planning.curve(made)
    folder = storage.save(bench, save, "measure/capacity.html", plan=made, curve=picture)
    (folder / "capacity.svg").write_text(picture)
    if as_json:
        click.echo(json.dumps(asdict(made), indent=1))
    else:
        click.echo(cost)
        table(*made.table())
        click.echo(made.says())
        click.echo(f"saved in {folder}: open {folder}/index.html")


def _measured(model: str, target: Addresses, options: MeasureOptions) -> Bench:
    with connect(target.url) as triton:
        config = triton.config(model)
    with bar(f"capacity {model}") as tick:
        tick(0.0, "asking every row alone")
        try:
            workload = sweep.prepare(model, target, DataSource(), through="app")
            loads = planning.loads(config, "app")
        except (UsageError, validity.Untrusted) as exc:
            click.echo(f"Triton is asked directly, and what the web app costs is left out: {exc}", err=True)
            workload = sweep.prepare(model, target, DataSource())
            loads = planning.loads(config, "triton")
        # Ours alone counts bytes, and looks at every answer.
        ours = replace(options, client="gourmet")
        points, refused = sweep.run(workload, loads, target, ours, on_step=tick)
    if refused:
        raise validity.Untrusted("; ".join(map(str, refused)))
    return sweep.bench(f"What {model} takes", command_line(), workload.rows.about, points)
