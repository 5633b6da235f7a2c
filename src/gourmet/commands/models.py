"""The models that are there: `gourmet list`, `load`, `unload`, `rollback` and `remove`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from gourmet.commands.options import (
    alone_in,
    asked_stack,
    json_option,
    repositories_option,
    send_option,
    serving_url,
    to_option,
    url_option,
)
from gourmet.commands.values import FOLDER
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.reports.table import columns
from gourmet.repository.lock import tidied
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.stack.overview import ListedVersion, listed
from gourmet.stack.run_file import stack_at
from gourmet.systems.data_systems import removal_of, take_away
from gourmet.systems.own_folder import beside_the_served, remove_own_copy
from gourmet.triton_client.errors import ApiRestricted, NoAnswerInTime, TritonRefused

_HEADINGS: Final = ("system", "model", "version", "state", "deployed", "by", "MB", "MB in memory", "requests")
# A model that was just loaded and does not answer its sample by then has a fault.
_ANSWERS_WITHIN_S: Final = 10.0
_UNKNOWN: Final = "failed to poll from model repository"


@click.command()
@repositories_option(found=True)
@url_option("Ask this Triton what it serves.  [default: the running stack's]", required=False)
@click.option("--all", "study", is_flag=True, help="List models for study, and parts of other models, too.")
@json_option
def list(repositories: tuple[Path, ...], url: str | None, study: bool, as_json: bool) -> None:
    """List systems, models and versions: which serves, when and from where it was deployed, its size.

    Memory and requests are counted since the stack started, or the model was loaded again.
    """
    stack = asked_stack()
    rows = listed(repositories, url or (stack.http_url if stack else None))
    if as_json:
        echo(json.dumps([vars(row) for row in rows], indent=2))
        return
    hidden = {row.model for row in rows if row.study and not row.reason and not study}
    rows = [row for row in rows if row.model not in hidden]
    echo(columns([_HEADINGS, *map(_cells, rows)]))
    if hidden:
        echo(f"{len(hidden)} models for study are not listed; --all lists them")
    for row in rows:
        if row.reason:
            name = f"{row.model}/{row.version}" if row.version else row.model or row.system
            echo(f"{name} is {row.state}: {' '.join(row.reason.split())}")


def _cells(row: ListedVersion) -> tuple[str, ...]:
    def megabytes(size: int | None) -> str:
        return "–" if size is None else f"{size / 1e6:.1f}"

    when = row.deployed[:16].replace("T", " ")
    requests = "–" if row.requests is None else str(row.requests)
    texts = (row.system, row.model, str(row.version or ""), row.state, when, row.by)
    return (*texts, megabytes(row.bytes), megabytes(row.memory_bytes), requests)


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
    from gourmet.commands.running import ask_loaded, load_and_ask

    with connect(url, LOADS_WITHIN_S) as triton:
        try:
            if not source:
                triton.load(name)
                with connect(url, _ANSWERS_WITHIN_S) as asked:
                    answer = ask_loaded(asked, name)
            else:
                with beside_the_served(name, source, stack_at(url)) as (model, send):
                    if send:  # Triton does not report the errors of files that replace others
                        triton.unload(name)
                    answer = load_and_ask(url, model, send=send, answers_within_s=_ANSWERS_WITHIN_S)
        except ApiRestricted:
            raise
        except NoAnswerInTime as exc:
            raise GourmetError(
                f"{name} is loaded and did not answer its sample: {exc}; does its execute() end?"
            ) from exc
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
    from gourmet.repository.deploy import rollback as withdraw
    from gourmet.repository.versions import models_deployed_together

    with alone_in(models):
        chosen, triton = models_deployed_together(models, name, undo=undo), url or serving_url(models)

        if triton and not _is_answering(triton):
            echo(f"no Triton answers at {triton}; the files are changed for its next start", err=True)
            triton = None

        def serve(latest: Mapping[Path, int]) -> None:
            for model in latest if triton else ():
                echo(load_and_ask(triton or "", model, send=send), err=as_json)

        with served_as_before(triton, chosen, send=send):
            steps = withdraw(chosen, serve, undo=undo)
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


def _is_answering(url: str) -> bool:
    with connect(url) as triton:
        return triton.is_live()


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
    from gourmet.commands.running import load_shipped, tell_web

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
        for name in (model.name for model in removal.models if (DEFAULT_REPOSITORY / model.name).is_dir()):
            if triton := url or serving_url(DEFAULT_REPOSITORY):
                load_shipped(triton, name)
                echo(f"{name}: the shipped version serves again")
        return
    for version in removal.of_models:
        take_away([version])
        if triton := url or serving_url(version.parents[1]):
            with connect(triton, LOADS_WITHIN_S) as server:
                server.load(version.parent.name)


def _take_away(paths: Sequence[Path]) -> None:
    for folder in take_away(paths):
        names = ", ".join(sorted(path.name for path in folder.iterdir()))
        echo(f"kept {folder}: it has files that gourmet did not write: {names}")
