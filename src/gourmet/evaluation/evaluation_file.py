"""Measurements of weights, kept beside them; `gourmet deploy` ships them with the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.reports.report import Report
from gourmet.served.files import write_whole
from gourmet.served.manifest import sha256
from gourmet.served.reading import error_summary, malformed_as_value_error, read_table

_NAME: Final = "evaluation.json"


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
