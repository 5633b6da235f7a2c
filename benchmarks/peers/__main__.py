"""`python -P benchmarks/peers`: what a user would pick instead, on the same photos and cores."""

from __future__ import annotations

import sys
from pathlib import Path

import click

# This folder is a package, which is found from the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FOLDER, POSITIVE, counts
from gourmet.measure.task import MeasureOptions
from harness.run import main, programs, run
from peers import page
from peers.contenders import ARMS, PhotoBench
from peers.photos import SETS, differences, expected_answers


@click.command()
@click.option("--turns", default=3, show_default=True, type=POSITIVE, help="How often all is measured.")
@click.option("--window", "window_s", default=3.0, show_default=True, type=click.FloatRange(0.2, 60))
@click.option("--concurrency", "levels", type=counts, default="1,8,32", help="Photos asked about at a time.")
@click.option(
    "--photos",
    multiple=True,
    type=click.Choice(list(SETS)),
    default=list(SETS),
    help="small: 400×300; phone: 12 megapixels.  [default: both]",
)
@click.option("--arm", "keys", multiple=True, type=click.Choice(list(ARMS)), help="Measure this one only.")
@click.option("--write", type=FOUND_FOLDER, help="Rewrite the part of this command in FOLDER/measuring.md.")
def peers(
    turns: int,
    window_s: float,
    levels: tuple[int, ...],
    photos: tuple[str, ...],
    keys: tuple[str, ...],
    write: Path | None,
) -> None:
    """Ours, FastAPI, LitServe, BentoML and no server at all, on the same photos, one after another.

    Starts and stops everything itself on free ports; the peers get a virtual environment of their own
    under the user's cache, made once. All in its default takes about 13 minutes. Every answer is checked
    against the same ONNX file run without a server; a wrong one ends the run.
    """
    chosen = [ARMS[key] for key in keys or ARMS]
    options = MeasureOptions(window_s=window_s, windows=1, warm_up_s=0.7)
    sets = {name: SETS[name] for name in photos}
    others = programs(page.REQUIREMENTS) if any(arm.role == "peers" for arm in chosen) else None
    with bar("peers") as tick:
        tick(0.0, "drawing photos, and what each photo's answer must be")
        expected = expected_answers(sets)
        bench = PhotoBench(sets, expected, levels, options, others)
        outcome = run([bench.contender(arm) for arm in chosen], turns, tick)
    comparison = page.PhotoComparison(sets, outcome, differences(expected, sets))
    words = page.PART.about(turns, window_s) + page.as_markdown(comparison)
    click.echo(words)
    if write:
        page.PART.write(write, words, {page.PICTURE: page.draw(comparison)})


if __name__ == "__main__":
    main(peers)
