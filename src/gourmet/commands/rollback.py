"""`gourmet rollback`: serve the version before the latest again, or the one that was withdrawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from gourmet.commands.options import alone_in, json_option, send_option, serving_url, to_option, url_option
from gourmet.errors import echo
from gourmet.stack.connect import connect


@click.command()
@click.argument("name", metavar="SYSTEM-OR-MODEL")
@click.option("--undo", is_flag=True, help="Bring back the version that the last rollback withdrew.")
@to_option
@url_option("Switch this Triton over, too.  [default: the running stack, if it serves --to]", required=False)
@send_option
@json_option
def rollback(name: str, undo: bool, models: Path, url: str | None, send: bool, as_json: bool) -> None:
    """Go back to the version before, of a model or of all models of a system's last deployment.

    Config and labels come back with the version, and it is asked for its sample. If it does not answer,
    nothing changes. If no Triton answers, only the files change. The withdrawn version is kept until the next
    deployment of its model: --undo brings it back.
    """
    from gourmet.commands.running import load_and_ask, served_as_before
    from gourmet.repository.deploy import deployed_together
    from gourmet.repository.deploy import rollback as withdraw

    with alone_in(models):
        chosen, triton = deployed_together(models, name, undo=undo), url or serving_url(models)

        if triton and not _answers(triton):
            echo(f"no Triton answers at {triton}; the files are changed for its next start", err=True)
            triton = None

        def served(latest: Mapping[Path, int]) -> None:
            for model in latest if triton else ():
                echo(load_and_ask(triton or "", model, send=send), err=as_json)

        with served_as_before(triton, chosen, send=send):
            steps = withdraw(chosen, served, undo=undo)
        serves = "serves" if triton else "is the latest; no Triton was asked"
        if as_json:
            rows = [
                {
                    "model": model.name,
                    "withdrawn": None if undo else before,
                    "version": latest,
                    "serves": bool(triton),
                }
                for model, (before, latest) in steps.items()
            ]
            echo(json.dumps(rows, indent=2))
            return
        for model, (before, latest) in steps.items():
            change = (
                f"version {latest} is back, it"
                if undo
                else f"version {before} is withdrawn, version {latest}"
            )
            echo(f"{model.name}: {change} {serves}")


def _answers(url: str) -> bool:
    with connect(url) as triton:
        return triton.is_live()
