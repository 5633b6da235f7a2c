"""`gourmet check`: measure the accuracy and speed of a served model, through the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gourmet.commands.options import alone_in, chosen_repository, given_url, serving_url, url_option
from gourmet.commands.progress import Stopped, bar
from gourmet.commands.values import PATH, POSITIVE, model_of
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.repository.models import repository_of
from gourmet.repository.versions import newest_version
from gourmet.served.files import write_whole
from gourmet.systems import registry
from gourmet.systems.parts import SystemParts

if TYPE_CHECKING:  # which would import numpy for --help
    from gourmet.reports.report import Report


@click.command()
@click.argument("model", metavar="SYSTEM-OR-MODEL", callback=model_of)
@click.option(
    "--data",
    type=PATH,
    help="Test data: what `gourmet train` reads, of which the test part is used; a folder of nothing but "
    "pictures; or a file of texts.  [default: the examples of its system]",
)
@click.option("--limit", type=POSITIVE, help="Use at most N examples, sampled evenly.")
@url_option()
@click.option("--against", metavar="OLD", help="Ask OLD, another model or version, the same and compare.")
@click.option(
    "--model-repository",
    "--repository",
    "repository",
    type=PATH,
    help="With --calibrate: change the models of this repository.  [default: your own, with copies of "
    "shipped ones]",
)
@click.option("--min-top1", type=click.FloatRange(0, 1), help="Fail if accuracy is below this share.")
@click.option("--calibrate", is_flag=True, help="Only set the confidence threshold, by --data.")
@click.option("--out", type=PATH, help="Write a page: FILE.html, or a folder for MODEL.html.")
@click.option("--json", "json_to", metavar="FILE", help="Write the numbers as JSON; `-` prints them instead.")
def check(
    model: str, json_to: str | None, out: Path | None, calibrate: bool, repository: Path | None, **how: Any
) -> None:
    """Measure how often the served MODEL is right, and how fast it answers, on many examples.

    A classifier gets labelled pictures. Some are sent twice, to check that every answer belongs to its
    picture. A model that generates text gets its system's examples, whole and, if it streams, in pieces; with
    --data of texts and their right answers, BLEU and chrF are reported too. With --against, the report says
    how many answers equal those of another model or version.

    The exit status is 1 if requests failed, if answers were mixed up, or if top-1 is below --min-top1;
    130 after Ctrl-C.

    \b
    gourmet check food_classifier --data shared/food11 --limit 2000 --min-top1 0.6
    gourmet check food_classifier_int8 --data shared/food11 --out int8.html
    gourmet check food_classifier/2 --against food_classifier/1 --data shared/food11
    """
    from gourmet.evaluation import checking
    from gourmet.stack.connect import connect

    if calibrate:
        if not how["data"]:
            raise UsageError("--calibrate needs labelled examples: name them with --data")
        from gourmet.stack.overview import owner_of

        system = owner_of((repository or repository_of(model)) / model)[0]
        models = chosen_repository(click.get_current_context(), None, repository)
        _calibrate(system, how["data"], models, json_to)
        return
    page = _page_path(out, model)
    options = checking.CheckOptions(model, **how)
    with connect(options.url) as triton:
        info = triton.describe(model)
        if not info.system:
            raise UsageError(
                f"the config of {model!r} does not say which system it belongs to: give it "
                f'parameters {{ key: "system" value: {{ string_value: "…" }} }}, '
                f"one of {', '.join(registry.names())}"
            )
        try:
            report = checking.check_model(triton, options, info, SystemParts(info.system), bar)
        except KeyboardInterrupt:
            raise Stopped("stopped before the first answer") from None
    _print_report(report, json_to, page)


def _page_path(out: Path | None, model: str) -> Path | None:
    """Return the file of the page of --out."""
    if out and out.suffix not in ("", ".html"):
        raise UsageError(f"--out {out} is not a page: name a folder, or a file that ends in .html")
    return out / f"{model.replace('/', '-')}.check.html" if out and not out.suffix else out


def _write_json(text: str, json_to: str) -> None:
    """Write into the file of --json, or to the terminal for `-`."""
    echo(text) if json_to == "-" else Path(json_to).write_text(text + "\n", encoding="utf-8")


def _print_report(report: Report, json_to: str | None, page: Path | None) -> None:
    """Print and write the report; raise Stopped after Ctrl-C, or GourmetError if it has failures."""
    if json_to:
        _write_json(report.json(), json_to)
    if json_to != "-":
        echo(report.text())
    if page:
        write_whole(page, report.page())
        echo(f"page in {page}", err=True)
    if report.stopped:
        raise Stopped(f"stopped after {report.stopped}")
    if report.failures:
        raise GourmetError("\n       ".join(report.failures))


def _calibrate(system: str, data: Path, models: Path, json_to: str | None) -> None:
    """Set the threshold of a system's deployed models by their answers to labelled examples."""
    from gourmet.commands.running import load_and_ask, served_as_before
    from gourmet.repository.deploy import recalibrate
    from gourmet.repository.gate import Calibrating
    from gourmet.repository.versions import models_of_same_weights
    from gourmet.systems.own_folder import copies_of_shipped

    parts = SystemParts(system)
    export = parts.export
    if not isinstance(export, Calibrating):
        raise UsageError(f"{system} is calibrated by `gourmet evaluate {system}`, before it is deployed")
    models.mkdir(parents=True, exist_ok=True)
    default = models / parts.contract.default_model
    triton = given_url() or serving_url(models)
    with alone_in(models), copies_of_shipped(system, models):
        chosen = models_of_same_weights(default)
        with bar("answering") as tick:
            calibrated = export.calibrated(newest_version(default), data, tick)

        def serve(model: Path) -> None:
            if triton:
                load_and_ask(triton, model)

        with served_as_before(triton, chosen):
            recalibrate(chosen, calibrated.calibration, calibrated.facts, serve)
    if json_to:
        _write_json(json.dumps(calibrated.facts, indent=2), json_to)
    if json_to == "-":
        return
    echo("\n".join(calibrated.lines))
    echo(f"written to {', '.join(model.name for model in chosen)} in {models}")
