"""`gourmet evaluate`: accuracy, calibration and mistakes of trained weights, as a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from gourmet.commands.options import json_option, trained_options
from gourmet.commands.progress import bar
from gourmet.commands.values import POSITIVE, system_of
from gourmet.errors import UsageError, echo
from gourmet.repository.models import repository_of
from gourmet.systems import registry
from gourmet.systems.parts import SystemParts

_SERVED: Final = "model.onnx"


@click.command()
@click.argument("system", metavar="SYSTEM-OR-MODEL", callback=system_of)
@trained_options
@click.option("--limit", type=POSITIVE, help="Use at most N examples of each part.")
@click.option("--device", default="cpu", help="Compute on cpu or cuda.")
@json_option
def evaluate(system: str, weights: Path | None, data: Path | None, as_json: bool, **how: Any) -> None:
    """Measure SYSTEM's weights; write the report and the calibration next to them.

    Without trained weights, measure the served ones on the examples of --data.
    """
    from gourmet.evaluation.calibration import write_report
    from gourmet.evaluation.system_parts import EvaluateOptions
    from gourmet.served import malloc
    from gourmet.training.run import data_of

    malloc.use(malloc.TRAINING)
    if not weights:
        _refuse_made_from_photos(system)
    evaluation = SystemParts(system).evaluation
    trained = Path("runs") / system / "last.safetensors"
    if not weights and not trained.exists():
        if not data:
            raise UsageError(
                f"{trained} does not exist: train first, or measure the served weights "
                "on labelled examples that you name with --data"
            )
        weights = _served(system)
    weights = weights or trained
    report, measured = evaluation.evaluate(EvaluateOptions(weights, data or data_of(weights), **how), bar)
    page = write_report(report, weights, measured)
    echo(report.json() if as_json else f"{report.text()}\nreport in {page}")


def _refuse_made_from_photos(system: str) -> None:
    """Raise UsageError for a classifier that was made without training: it has no weights to measure."""
    from gourmet.repository.versions import newest_intact_version
    from gourmet.served import manifest

    name = registry.load(system).default_model
    version = newest_intact_version(repository_of(name) / name)
    if version and "cross-validation" in manifest.facts(version).get("accuracy", {}):
        raise UsageError(
            f"{system} was made from photos: its model card has its accuracy by cross-validation, and "
            f"`gourmet check {name} --data FOLDER` measures it on other photos"
        )


def _served(system: str) -> Path:
    """Write the served weights into a folder of their own, for the report; return the file."""
    from gourmet.repository.versions import newest_intact_version
    from gourmet.served import manifest
    from gourmet.training.files import onnx_tensors, save_tensors

    name = registry.load(system).default_model
    version = newest_intact_version(repository_of(name) / name)
    if not version or not (version / _SERVED).exists():
        raise UsageError(
            f"the served version of {system} keeps no weights to measure: ask it with `gourmet check {name} "
            "--data …`, or name weights with --weights"
        )
    about = manifest.facts(version)
    known = {**about.get("network", {}), "calibration": about.get("calibration")}
    weights = Path("runs") / f"{system}-served" / "served.safetensors"
    save_tensors(weights, onnx_tensors(version / _SERVED), known)
    return weights
