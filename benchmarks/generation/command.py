"""`python -P benchmarks/generation`: the loop beside what a user would take instead of it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from gourmet.commands.bench_options import table
from gourmet.commands.progress import bar
from gourmet.commands.values import FOLDER, FOUND, FOUND_FILE, FOUND_FOLDER, POSITIVE
from gourmet.measure.results import HEADINGS
from gourmet.measure.task import MeasureOptions

_weights = click.option("--weights", type=FOUND_FILE, default=Path("runs/translator/best.safetensors"))
_data = click.option(
    "--data", type=FOUND, help="Sentences with a test part.  [default: those the weights were trained on]"
)
_write = click.option(
    "--write",
    type=FOUND_FOLDER,
    help="Folder with the page whose part of this command is rewritten, such as docs.",
)
_turns = click.option(
    "--turns", default=3, type=POSITIVE, help="How often all is measured.", show_default=True
)
_window = click.option("--window", "window_s", default=4.0, show_default=True, type=click.FloatRange(0.2, 60))
_warm_up = click.option(
    "--warm-up", "warm_up_s", default=1.0, show_default=True, type=click.FloatRange(0.1, 60)
)


@click.group()
def generation() -> None:
    """Compare the loop with the alternatives."""


@generation.command()
@_weights
@_data
@click.option("--sentences", "count", default=200, type=POSITIVE, help="Number at most.", show_default=True)
@_turns
@_window
@_warm_up
@click.option(
    "--out",
    type=FOLDER,
    default=Path("runs/generation"),
    show_default=True,
    help="Folder of what was measured; a run that was stopped resumes from it.",
)
@_write
def compare(
    weights: Path,
    data: Path | None,
    count: int,
    turns: int,
    window_s: float,
    warm_up_s: float,
    out: Path,
    write: Path | None,
) -> None:
    """The same sentences looped by the client, by BLS and in process, and by what a user would take instead.

    Starts and stops everything itself on free ports, one after another, with the models of triton/models,
    which have to be of --weights. Every answer is checked. All in its default takes ten to fifteen minutes.
    """
    from generation import http_arms, page, served, without_triton
    from generation.sentences import Sentences, fitting
    from gourmet.runtime.instances import available_cpus
    from gourmet.runtime.manifest import sha256
    from gourmet.systems.translator.network import load
    from gourmet.training.run import data_of
    from harness import environment
    from harness.run import run

    read = data or data_of(weights)
    plan = {"weights": sha256(weights), "data": read, "sentences": count, "window": [warm_up_s, window_s]}
    requirements = Path(__file__).with_name("requirements.txt")
    with bar("compare") as tick, TemporaryDirectory(prefix="gourmet-generation-") as folder:
        tick(0.0, "the network's own answers")
        checkpoint = load(weights)
        options = MeasureOptions(window_s=window_s, windows=1, warm_up_s=warm_up_s)
        texts, mixed = fitting(read, checkpoint, count), tuple(served.CONTINUOUS)
        sentences = Sentences(checkpoint, texts, options, Path(folder), mixed)
        cpus = available_cpus()
        contenders = [
            served.contender(sentences),
            http_arms.web_app(sentences),
            *without_triton.contenders(sentences),
            *(
                # Workers and threads of each, by which CTranslate2 may use all processors.
                http_arms.behind_fastapi(
                    sentences,
                    lambda: environment.programs(requirements, lambda words: tick(0.0, words)),
                    form,
                    workers,
                    threads,
                )
                for form in http_arms.FORMS
                for workers, threads in sorted({(1, cpus), (cpus, 1)})
            ),
        ]
        outcome = run(contenders, turns, tick, out, plan)
        comparison = page.SentenceComparison(
            outcome.windows, len(sentences.texts), sentences.pieces, turns, window_s
        )
    for words, why in outcome.left_out.items():
        click.echo(f"left out: {words}: {why}", err=True)
    table(page.TABLE, [page.cells(row) for row in comparison.rows])
    table(HEADINGS, [goal.as_row() for goal in page.goals(comparison)])
    if write:
        for path in page.write(comparison, write):
            click.echo(f"wrote {path}")
