"""The confidence of a classifier's network, as evaluation measured it: temperature and thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, FiniteFloat, TypeAdapter

from gourmet.errors import GourmetError
from gourmet.evaluation import evaluation_file
from gourmet.served.reading import error_summary


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
    measured = evaluation_file.read_measured(weights)
    return calibration_of(measured.get("calibration"), weights.parent), measured.get("accuracy", {})
