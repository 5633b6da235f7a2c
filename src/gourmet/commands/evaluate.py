"""`gourmet evaluate`: accuracy, calibration and mistakes of trained weights, as a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gourmet.commands.options import json_option, trained_options
from gourmet.commands.progress import bar
from gourmet.commands.values import POSITIVE
from gourmet.systems import registry


@click.command()
@click.argument("system", type=click.Choice(registry.names()))
@trained_options
@click.option("--limit", type=POSITIVE, help="Measure on so many examples of each part only.")
@click.option("--device", default="cpu", help="Compute on cpu or cuda.")
@json_option
def evaluate(system: str, weights: Path | None, data: Path | None, as_json: bool, **how: Any) -> None:
    """Measure SYSTEM's weights; write the report and the calibration next to them."""
    from gourmet.runtime import malloc
    from gourmet.tasks.system_parts import SystemParts
    from gourmet.training.run import data_of

    malloc.use(malloc.TRAINING)
    evaluation = SystemParts(system, registry.piece).evaluation
    weights = weights or Path("runs") / system / "last.safetensors"
    found = evaluation.evaluate(weights, data or data_of(weights), bar, **how)
    report = found.write(weights, f"{system}: {weights.name}")
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        click.echo("\n".join([*found.lines(), f"report in {report}"]))
