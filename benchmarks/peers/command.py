"""`python -P benchmarks/peers`: what a user would pick instead, on the same photos and cores."""

from __future__ import annotations

from pathlib import Path

import click

from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FOLDER, POSITIVE, counts

_PHOTOS = ("small", "phone")


@click.command()
@click.option("--turns", default=3, show_default=True, type=POSITIVE, help="How often all is measured.")
@click.option(
    "--window", "window_s", default=3.0, show_default=True, type=click.FloatRange(0.2, 60), metavar="SECONDS"
)
@click.option("--concurrency", "levels", type=counts, default="1,8,32", help="Photos asked about at a time.")
@click.option(
    "--photos",
    multiple=True,
    type=click.Choice(_PHOTOS),
    default=_PHOTOS,
    help="small: 400×300; phone: 12 megapixels.  [default: both]",
)
@click.option("--arm", "keys", multiple=True, metavar="NAME", help="Measure this one; --list names them all.")
@click.option("--list", "listed", is_flag=True, help="List who can take part, and stop.")
@click.option(
    "--write",
    type=FOUND_FOLDER,
    help="Folder with measuring.md, whose part of this command is rewritten, such as docs.",
)
def peers(
    turns: int,
    window_s: float,
    levels: tuple[int, ...],
    photos: tuple[str, ...],
    keys: tuple[str, ...],
    listed: bool,
    write: Path | None,
) -> None:
    """Ours, FastAPI, LitServe, BentoML and no server at all, on the same photos, one after another.

    Starts and stops everything itself on free ports; the peers get a virtual environment of their own
    under the user's cache, made once. All in its default takes about 13 minutes. Every answer is checked
    against the same ONNX file run without a server; a wrong one ends the run.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from gourmet.errors import UsageError
    from gourmet.measure.task import MeasureOptions
    from harness import environment
    from harness.run import run
    from peers import page
    from peers.contenders import ARMS, PhotoBench
    from peers.expected import differences, expected_answers
    from peers.photo_sets import draw

    if listed:
        for arm in ARMS.values():
            click.echo(f"{arm.key:14} {arm.words}")
        return
    if unknown := [key for key in keys if key not in ARMS]:
        raise UsageError(f"--arm {unknown[0]!r} is not one of {', '.join(ARMS)}")
    chosen = [ARMS[key] for key in keys or ARMS]
    options = MeasureOptions(window_s=window_s, windows=1, warm_up_s=0.7)
    with bar("peers") as tick:
        programs = None
        if any(arm.role == "peers" for arm in chosen):
            programs = environment.programs(page.REQUIREMENTS, lambda words: tick(0.0, words))
        tick(0.0, "drawing photos")
        sets = draw(photos)
        tick(0.0, "what each photo's answer must be")
        expected = expected_answers([arm.way for arm in chosen], sets)
        bench = PhotoBench(sets, expected, levels, options, programs)
        outcome = run([bench.contender(arm) for arm in chosen], turns, tick)
    plan = {
        "arms": [arm.key for arm in chosen],
        "photos": photos,
        "concurrencies": levels,
        "turns": turns,
        "window_s": window_s,
        "warm_up_s": options.warm_up_s,
    }
    named = {name: str(drawn) for name, drawn in sets.items()}
    comparison = page.PhotoComparison(plan, named, outcome, differences(expected))
    Console().print(Markdown(page.as_markdown(comparison)))
    if write:
        for path in page.write(comparison, write):
            click.echo(f"wrote {path}")
