"""`gourmet check`: accuracy, agreement and latency of a served model, asked through the server."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gourmet import repository
from gourmet.commands.progress import bar
from gourmet.errors import GourmetError, UsageError


class CheckFailed(GourmetError):
    """Answers that are missing, mixed up, or too often wrong."""


class Stopped(GourmetError):
    """Ctrl-C before the end."""

    exit_code = 130


@click.command()
@click.argument("model")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="What `gourmet train` reads, or a folder of pictures without labels.",
)
@click.option(
    "--part", default="test", show_default=True, help="Which part of labelled data; `all` for every one."
)
@click.option("--limit", type=click.IntRange(min=1), help="Ask about so many pictures only, from all over.")
@click.option("--missing-classes", is_flag=True, help="The data may lack pictures of some classes.")
@click.option(
    "--url",
    envvar="TRITON_SERVER_URL",
    default="localhost:8000",
    show_default=True,
    help="Triton's HTTP address.",
)
@click.option(
    "--in-flight", type=click.IntRange(1, 256), default=16, show_default=True, help="Requests at a time."
)
@click.option(
    "--batch", type=click.IntRange(1), default=16, show_default=True, help="Pictures a request, at most."
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=60, show_default=True, metavar="S"
)
@click.option(
    "--eager",
    "weights",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Weights to compare with. [default: those of the model's manifest, if they are in runs/]",
)
@click.option(
    "--model-repository",
    "folder",
    type=click.Path(path_type=Path),
    default=repository.DEFAULT,
    help="Where the manifest lies. [default: triton/models]",
)
@click.option("--min-top1", type=click.FloatRange(0, 1), help="Fail if fewer answers are right.")
@click.option("--json", "json_to", metavar="FILE", help="Write the numbers as JSON; `-` prints them instead.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Draw them on a page: FILE.html, or a folder for MODEL.html.",
)
def check(
    model: str,
    data: Path,
    part: str,
    limit: int | None,
    missing_classes: bool,
    url: str,
    in_flight: int,
    batch: int,
    timeout_s: float,
    weights: Path | None,
    folder: Path,
    min_top1: float | None,
    json_to: str | None,
    out: Path | None,
) -> None:
    """Ask the served MODEL about many labelled pictures and say how right, how sure and how fast it is.

    What it says is compared with the network that it was exported from, and some pictures are asked
    about twice, to see that every answer is its own picture's. The exit status is 1 if requests
    failed, if answers were mixed up, or if top-1 is below --min-top1; 130 after Ctrl-C.

    \b
    gourmet check food_classifier --data shared/food11 --limit 2000 --min-top1 0.6
    gourmet check food_classifier_int8 --data shared/food11 --in-flight 4 --out int8.html
    """
    from gourmet.checking.asking import Pace
    from gourmet.checking.check import Wanted
    from gourmet.checking.check import check as run
    from gourmet.checking.summary import summary
    from gourmet.training.interrupts import Interrupts

    if out and out.suffix not in ("", ".html"):
        raise UsageError(f"--out {out} is neither a folder nor a file that ends in .html")
    wanted = Wanted(
        model=model,
        data=data,
        repository=folder,
        url=url.removeprefix("http://").rstrip("/"),
        part=part,
        limit=limit,
        missing_classes=missing_classes,
        pace=Pace(in_flight, batch, timeout_s),
        weights=weights,
    )
    with Interrupts() as interrupts:
        report = run(wanted, bar, lambda: interrupts.asked)
    if json_to:
        text = json.dumps(report.as_dict(), indent=2)
        click.echo(text) if json_to == "-" else Path(json_to).write_text(text + "\n", encoding="utf-8")
    if json_to != "-":
        click.echo(summary(report))
    if out:
        from gourmet.checking.page import write_page  # with torch, which takes seconds

        click.echo(f"page in {write_page(out, report)}", err=True)
    if report.stopped:
        raise Stopped(f"stopped after {report.answered} of {len(report.pictures)} pictures")
    problems = report.problems()
    if min_top1 is not None:
        problems += _too_low(report.quality.accuracy.top1 if report.quality else None, min_top1)
    if problems:
        raise CheckFailed("\n       ".join(problems))


def _too_low(top1: float | None, wanted: float) -> list[str]:
    if top1 is None:
        return [f"--min-top1 {wanted} cannot be judged: there are no labels, or no answers"]
    return [f"top-1 is {top1:.4f}, below the {wanted} that --min-top1 asks for"] if top1 < wanted else []
