"""`gourmet rollback`: serve the version before the latest again."""

from __future__ import annotations

from pathlib import Path

import click

from gourmet.commands.options import alone_in, serving_url, to_option, url_option
from gourmet.deploying.deploy import load
from gourmet.deploying.deploy import rollback as withdraw
from gourmet.repository import read_config


@click.command()
@click.argument("model")
@to_option
@url_option(
    "Switch this Triton over, too.  [default: the running stack, if it serves --to]",
    required=False,
)
def rollback(model: str, models: Path, url: str | None) -> None:
    """Withdraw the latest version of MODEL, and put the config of the version before back."""
    read_config(models / model)
    with alone_in(models):
        latest, before = withdraw(models / model)
        if url := url or serving_url(models):
            load(url, model)
    click.echo(f"{model}: version {latest} is withdrawn, version {before} serves")
