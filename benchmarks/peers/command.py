"""`python benchmarks/peers`: what a user would pick instead, on the same photos and cores."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import click

from gourmet.commands.progress import bar
from gourmet.commands.values import numbers

_PHOTOS = ("small", "phone")


@click.command()
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1), help="How often all is run.")
@click.option(
    "--window", "window_s", default=3.0, show_default=True, type=click.FloatRange(0.2, 60), metavar="SECONDS"
)
@click.option("--concurrency", type=numbers, default="1,8,32", help="Photos asked about at the same time.")
@click.option(
    "--photos",
    multiple=True,
    type=click.Choice(_PHOTOS),
    default=_PHOTOS,
    help="small: 400×300; phone: 12 megapixels.  [default: both]",
)
@click.option(
    "--model-repository",
    "models",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder of the models to serve.  [default: triton/models]",
)
@click.option("--arm", "keys", multiple=True, metavar="NAME", help="Only these; --list tells the names.")
@click.option("--list", "listed", is_flag=True, help="Say who can take part, and stop.")
@click.option(
    "--write",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder with performance.md, whose part of this command is rewritten, such as docs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def peers(
    turns: int,
    window_s: float,
    concurrency: tuple[int, ...],
    photos: tuple[str, ...],
    models: Path | None,
    keys: tuple[str, ...],
    listed: bool,
    write: Path | None,
    as_json: bool,
) -> None:
    """Ours, FastAPI, LitServe, BentoML and no server at all, on the same photos, one after another.

    Starts and stops everything itself on free ports; the peers get a virtual environment of their own
    under the user's cache, made once. All in its default takes about 13 minutes. Every answer is checked
    against the same ONNX file run without a server; a wrong one ends the run.
    """
    import json

    from rich.console import Console
    from rich.markdown import Markdown

    from gourmet import repository
    from gourmet.errors import UsageError
    from gourmet.reports import machine
    from peers import report, run
    from peers.contenders import CONTENDERS

    if listed:
        for arm in CONTENDERS.values():
            click.echo(f"{arm.key:14} {arm.words}")
        return
    if unknown := [key for key in keys if key not in CONTENDERS]:
        raise UsageError(f"--arm {unknown[0]!r} is not one of {', '.join(CONTENDERS)}")
    chosen = tuple(keys) or tuple(CONTENDERS)
    plan = run.Plan(
        chosen, photos, concurrency, turns, window_s, models=(models or repository.DEFAULT).resolve()
    )
    with bar("peers") as tick:
        results = run.measure(plan, tick)
    about, today = machine.about(), date.today().isoformat()
    if as_json:
        click.echo(json.dumps(report.as_data(results, about, today), indent=1))
    else:
        Console().print(Markdown(report.as_markdown(results, about, today)))
    if write:
        for path in report.write(results, about, write, today):
            click.echo(f"wrote {path}", err=as_json)
