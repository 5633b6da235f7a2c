"""`gourmet rollback`: serve the version before the latest again."""

from __future__ import annotations

from pathlib import Path

import click

from gourmet.deploying.live import load
from gourmet.deploying.rollback import rollback as withdraw
from gourmet.repository import DEFAULT, read_config


@click.command()
@click.argument("model")
@click.option(
    "--to", "repository", type=click.Path(path_type=Path), default=DEFAULT, help="Model repository."
)
@click.option("--url", help="Triton's HTTP address, to switch a running server too.")
def rollback(model: str, repository: Path, url: str | None) -> None:
    """Withdraw the latest version of MODEL, with its temperature and threshold."""
    read_config(repository / model)
    latest, before = withdraw(repository / model)
    if url:
        load(url, model)
    click.echo(f"{model}: version {latest} is withdrawn, version {before} serves")
