"""What `gourmet evaluate` measured of weights, in a file beside them that `gourmet deploy` ships.

Of a classifier it has the calibration: a temperature and thresholds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, FiniteFloat, TypeAdapter

from gourmet.errors import GourmetError
from gourmet.reports.report import Report
from gourmet.served.files import write_whole
from gourmet.served.manifest import sha256
from gourmet.served.reading import error_summary, malformed_as_value_error, read_table

_NAME: Final = "evaluation.json"


@dataclass(frozen=True)
class Calibration:
    """A temperature and thresholds; unless it was evaluated, a network's confidence is taken as it is.

    `coverage` is what other thresholds would do: see `accuracy.coverage_text`.
    """

    temperature: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    threshold: FiniteFloat = 0.0
    subject_threshold: FiniteFloat = 0.0
    coverage: str = ""


_READ: Final = TypeAdapter(Calibration)


def calibration_of(values: Any, path: Path) -> Calibration:
    """Read the calibration in a file's own description."""
    try:
        return _READ.validate_python(values)
    except ValueError as exc:
        raise GourmetError(f"{path} says no calibration that can be used: {error_summary(exc)}") from exc


def read_evaluation(weights: Path) -> tuple[Calibration, dict[str, Any]]:
    """Return the calibration and accuracy of `weights`; raise NotEvaluated if they were not measured."""
    measured = read_measured(weights)
    return calibration_of(measured.get("calibration"), weights.parent), measured.get("accuracy", {})


class NotEvaluated(GourmetError):
    """Weights without an evaluation."""


def write_measured(weights: Path, **measured: Any) -> None:
    content = {"weights": {"file": weights.name, "sha256": sha256(weights)}, **measured}
    write_whole(weights.parent / _NAME, json.dumps(content, indent=2) + "\n")


def write_report(report: Report, weights: Path, measured: Mapping[str, Any]) -> Path:
    """Write the page and the measurements beside `weights`; return the path of the page."""
    page = weights.with_suffix(".report.html")
    write_whole(page, report.page())
    write_measured(weights, **measured)
    return page


def read_measured(weights: Path) -> dict[str, Any]:
    """Raise NotEvaluated for weights that were not measured."""
    path = weights.parent / _NAME
    if not path.exists():
        raise NotEvaluated(f"{path} does not exist: run `gourmet evaluate` on {weights} first")
    try:
        content = read_table(path)
        with malformed_as_value_error():
            digest = content["weights"]["sha256"]
    except (OSError, ValueError) as exc:
        raise NotEvaluated(
            f"{path} cannot be read ({error_summary(exc)}): run `gourmet evaluate` again"
        ) from exc
    if digest != sha256(weights):
        raise NotEvaluated(f"{path} is about other weights than {weights}: run `gourmet evaluate` on these")
    return content
