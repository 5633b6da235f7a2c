"""What evaluation found out about the confidence of a classifier's network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gourmet.tasks import evaluation_file


@dataclass(frozen=True)
class Calibration:
    """A temperature and thresholds; unless it was evaluated, a network's confidence is taken as it is."""

    temperature: float = 1.0
    threshold: float = 0.0
    subject_threshold: float = 0.0


def read_evaluation(weights: Path) -> tuple[Calibration, dict[str, Any]]:
    """The calibration and accuracy of `weights`; raises NotEvaluated for weights that were not measured."""
    found = evaluation_file.read(weights)
    return Calibration(**found["calibration"]), found["accuracy"]
