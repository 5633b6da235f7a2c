"""`python -P benchmarks/generation`: the loop beside what a user would take instead of it."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

# This folder is a package, which is found from the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generation import http_arms, page, served, without_triton
from generation.sentences import Sentences, fitting
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND, FOUND_FILE, FOUND_FOLDER, POSITIVE
from gourmet.measure.task import MeasureOptions
from gourmet.runtime.instances import available_cpus
from gourmet.systems.translator.network import load
from gourmet.training.run import data_of
from harness.report import rows_of
from harness.run import main, run


@click.command()
@click.option("--weights", type=FOUND_FILE, default=Path("runs/translator/best.safetensors"))
@click.option(
    "--data", type=FOUND, help="Sentences with a test part.  [default: those the weights were trained on]"
)
@click.option("--sentences", "count", default=200, type=POSITIVE, help="Number at most.", show_default=True)
@click.option("--turns", default=3, type=POSITIVE, help="How often all is measured.", show_default=True)
@click.option("--window", "window_s", default=4.0, show_default=True, type=click.FloatRange(0.2, 60))
@click.option("--write", type=FOUND_FOLDER, help="Rewrite the part of this command in FOLDER/loop.md.")
def generation(
    weights: Path, data: Path | None, count: int, turns: int, window_s: float, write: Path | None
) -> None:
    """The same sentences looped by the client, by BLS and in process, and by what a user would take instead.

    Starts and stops everything itself on free ports, one after another, with the models of triton/models,
    which have to be of --weights. Every answer is checked. All in its default takes ten to fifteen minutes.
    """
    read, cpus = data or data_of(weights), available_cpus()
    with bar("generation") as tick, TemporaryDirectory(prefix="gourmet-generation-") as folder:
        tick(0.0, "the network's own answers")
        checkpoint = load(weights)
        options = MeasureOptions(window_s=window_s, windows=1)
        texts = fitting(read, checkpoint, count)
        sentences = Sentences(checkpoint, texts, options, Path(folder), tuple(served.CONTINUOUS))
        contenders = [
            served.contender(sentences),
            http_arms.web_app(sentences),
            *(without_triton.in_python(sentences, threads) for threads in sorted({1, cpus})),
            without_triton.eager(sentences),
            *(
                # Workers and threads of each, by which CTranslate2 may use all processors.
                http_arms.behind_fastapi(sentences, form, workers, threads)
                for form in http_arms.FORMS
                for workers, threads in sorted({(1, cpus), (cpus, 1)})
            ),
        ]
        outcome = run(contenders, turns, tick)
    words = (
        page.PART.about(turns, window_s)
        + f"{len(texts)} sentences, {sentences.pieces:.1f} pieces an answer.\n\n"
        + "".join(f"- left out: {arm}: {why}\n" for arm, why in outcome.left_out.items())
        + page.as_markdown(rows_of(outcome.windows))
    )
    click.echo(words)
    if write:
        page.PART.write(write, words, {page.PICTURE: page.draw(rows_of(outcome.windows))})


if __name__ == "__main__":
    main(generation)
