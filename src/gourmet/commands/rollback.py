"""`gourmet rollback`: serve the version before the latest again."""

from __future__ import annotations

from pathlib import Path

import click

from gourmet.commands.stack_options import serving_url, url_option
from gourmet.deploying.versions import load
from gourmet.deploying.versions import rollback as withdraw
from gourmet.repository import DEFAULT, read_config


@click.command()
@click.argument("model")
@click.option(
    "--to", "repository", type=click.Path(path_type=Path), default=DEFAULT, help="Model repository."
)
@url_option("Triton to switch over, too.  [default: the running stack, if it serves --to]", required=False)
def rollback(model: str, repository: Path, url: str | None) -> None:
    """Withdraw the latest version of MODEL, with its temperature and threshold."""
    read_config(repository / model)
    latest, before = withdraw(repository / model)
    if url := url or serving_url(repository):
        load(url, model)
    click.echo(f"{model}: version {latest} is withdrawn, version {before} serves")
