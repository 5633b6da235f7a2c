"""`gourmet load` and `unload`: load a model for study, or your own folder, into a running Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from gourmet.commands.options import url_option
from gourmet.commands.running import ask, load_and_ask
from gourmet.commands.values import FOLDER
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.stack.run_file import stack_at
from gourmet.systems.own_folder import beside_the_served, remove_own_copy
from gourmet.triton_client.errors import ApiRestricted, TritonRefused

_UNKNOWN: Final = "failed to poll from model repository"


@click.command()
@click.argument("name")
@click.option("--from", "source", type=FOLDER, help="Your folder: config.pbtxt, and 1/ with a model.py.")
@url_option()
def load(name: str, source: Path | None, url: str) -> None:
    """Load the model NAME into the running Triton, and ask it once.

    Without --from, NAME is a model of the served repositories, such as one for study. With --from, a copy of
    your folder is served beside the other models until you unload it. Load it again after each change. If
    the new one cannot be loaded, the old one serves on. A Triton elsewhere, as in a container, gets the
    files, and keeps them until it ends.

    \b
    gourmet load food_first
    cp -rL triton/models/food_first my_food
    gourmet load my_food --from my_food
    gourmet unload my_food
    """
    with connect(url, LOADS_WITHIN_S) as triton:
        try:
            if not source:
                triton.load(name)
                answer = ask(triton, name)
            else:
                with beside_the_served(name, source, stack_at(url)) as (model, send):
                    if send:  # Triton does not report the errors of files that replace others
                        triton.unload(name)
                    answer = load_and_ask(url, model, send=send)
        except ApiRestricted:
            raise
        except TritonRefused as exc:
            if _UNKNOWN in exc.reason:
                raise UsageError(
                    f"no served repository has a model {name!r}: give your folder with --from"
                ) from exc
            raise GourmetError(f"Triton cannot load or ask {name}: {exc.reason}") from exc
    echo(answer)


@click.command()
@click.argument("name")
@url_option()
def unload(name: str, url: str) -> None:
    """Unload the model NAME from the running Triton. A copy that `load --from` made is removed."""
    with connect(url, LOADS_WITHIN_S) as triton:
        if name not in (ready := triton.ready_models()):
            raise UsageError(f"{name} is not loaded; ready are {', '.join(ready) or 'none'}")
        triton.unload(name)
    remove_own_copy(name)
    echo(f"{name} is unloaded")
