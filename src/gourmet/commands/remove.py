"""`gourmet remove`: remove a system, a model or a version from the repository and the running stack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gourmet.commands.options import alone_in, repositories_option, serving_url, url_option
from gourmet.commands.running import tell_web
from gourmet.errors import UsageError, echo
from gourmet.repository.deploy import load
from gourmet.repository.lock import tidied
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.systems.data_systems import removal_of, take_away


@click.command()
@click.argument("name", metavar="NAME[/VERSION]")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@repositories_option(found=True)
@url_option(
    "Unload it from this Triton, too.  [default: the running stack, if it serves the repository]",
    required=False,
)
def remove(name: str, yes: bool, repositories: tuple[Path, ...], url: str | None) -> None:
    """Remove the system NAME with its models, the model NAME, or a version of a model.

    Only files that deploying and `gourmet new` wrote are deleted. The page goes first, then its models.
    """
    if not repositories:
        raise UsageError(
            "this changes the repository of a Triton elsewhere: name its folder with --repository"
        )
    removal = removal_of(name, repositories)
    for path in (*removal.of_system, *removal.of_models):
        echo(f"to be removed: {path}")
    if not yes:
        click.confirm("Remove it?", abort=True)
    for folder in repositories:
        click.get_current_context().with_resource(alone_in(folder))
    if removal_of(name, repositories) != removal:
        raise UsageError(f"{name} was changed meanwhile: look at it again with `gourmet list`")
    for folder in {path.parent for path in removal.of_models if path.is_dir()}:
        tidied(folder)
    _take_away(removal.of_system)
    if removal.system:
        tell_web(removal.system, is_there=False)
    for model in removal.models:
        if triton := url or serving_url(model.parent):
            with connect(triton, LOADS_WITHIN_S) as server:
                server.unload(model.name)
    if removal.models:
        _take_away(removal.of_models)
        return
    for version in removal.of_models:
        take_away([version])
        if triton := url or serving_url(version.parents[1]):
            load(triton, version.parent.name)


def _take_away(paths: Sequence[Path]) -> None:
    for folder in take_away(paths):
        names = ", ".join(sorted(path.name for path in folder.iterdir()))
        echo(f"kept {folder}: it has files that gourmet did not write: {names}")
