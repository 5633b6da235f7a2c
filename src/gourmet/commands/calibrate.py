"""`gourmet calibrate`: from which score on the answers of a deployed model may be relied on."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gourmet.commands.options import alone_in, json_option, send_option, serving_url, to_option, url_option
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND
from gourmet.errors import UsageError
from gourmet.systems import registry


@click.command()
@click.argument("system", type=click.Choice(registry.names()))
@click.option("--data", type=FOUND, required=True, help="Choose and measure on these labelled examples.")
@click.option("--dry-run", is_flag=True, help="Measure only, and leave what is deployed as it is.")
@to_option
@json_option
@url_option(
    "Load the models into this Triton, too.  [default: the running stack, if it serves --to]", required=False
)
@send_option
def calibrate(
    system: str, data: Path, dry_run: bool, models: Path, as_json: bool, url: str | None, send: bool
) -> None:
    """Choose how sure SYSTEM's deployed models have to be, by their own answers.

    The threshold is chosen on the validation part of the data, so that enough of the answers that are called
    sure are right, and measured on the test part. `gourmet deploy` does the same with each version.

    \b
    gourmet calibrate translator --data pairs.tsv
    """
    from gourmet.commands.load_and_ask import load_and_ask, served_as_before
    from gourmet.deploying.deploy import newest, of_same_weights, recalibrate
    from gourmet.deploying.target import Calibrating
    from gourmet.tasks.system_parts import SystemParts

    parts = SystemParts(system, registry.piece)
    export = parts.export
    if not isinstance(export, Calibrating):
        raise UsageError(f"{system} is calibrated by `gourmet evaluate {system}`, before it is deployed")
    with alone_in(models):
        chosen = of_same_weights(models / parts.contract.default_model)
        with bar("answering") as tick:
            found = export.calibrated(newest(models / parts.contract.default_model), data, tick)
        if not dry_run:
            triton = url or serving_url(models)

            def served(model: Path) -> None:
                if triton:
                    load_and_ask(triton, model, send=send)

            with served_as_before(triton, chosen, send=send):
                recalibrate(chosen, found.calibration, found.facts, served)
    if as_json:
        click.echo(json.dumps(dict(found.facts), indent=2))
        return
    click.echo("\n".join(found.lines))
    if not dry_run:
        click.echo(f"written to {', '.join(model.name for model in chosen)} in {models}")
