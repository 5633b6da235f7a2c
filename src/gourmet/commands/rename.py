"""`gourmet rename`: a system and its models under another name, here and in the stack that runs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from gourmet.commands.load_and_ask import load_and_ask
from gourmet.commands.options import repositories_option, serving_url, url_option
from gourmet.commands.running import repositories_to_change, tell_web, unload
from gourmet.deploying.renaming import Renaming


@click.command()
@click.argument("name")
@click.argument("new_name")
@repositories_option(found=True)
@url_option(
    "Load the models into this Triton.  [default: the running stack, if it serves the repository]",
    required=False,
)
def rename(name: str, new_name: str, repositories: tuple[Path, ...], url: str | None) -> None:
    """Call the system NAME from now on NEW_NAME, and with it its models, its page and its variable.

    The models are loaded by their new names and asked before the old ones are unloaded. If one does not
    answer, nothing changes.
    """
    renaming = Renaming(name, new_name)
    repositories_to_change(repositories)
    with ExitStack() as undo:
        moves = renaming.apply(repositories, undo)
        for _, model in moves:
            if triton := url or serving_url(model.parent):
                undo.callback(unload, model.name, triton)
                click.echo(load_and_ask(triton, model))
        undo.pop_all()
    tell_web(new_name)
    for before, model in moves:
        if before != model.name:
            unload(before, url or serving_url(model.parent))
    click.echo(
        f"{name} is {new_name}: {', '.join(model.name for _, model in moves) or 'it has no model yet'}"
    )
