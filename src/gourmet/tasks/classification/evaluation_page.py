"""An evaluation as one HTML page with everything in it, pictures too."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gourmet.pictures.classifier import softmax
from gourmet.reports.chart import Series, lines
from gourmet.reports.page import render
from gourmet.reports.svg import COLOURS, FAINT, Drawing
from gourmet.tasks.classification.calibration import Bin, Operating, calibration_error
from gourmet.tasks.classification.evaluation import Answered, Evaluated

_MISTAKES: Final = 36


def page(title: str, evaluated: Evaluated) -> str:
    """The whole report."""
    return render(
        "tasks/classification/evaluation.html",
        title=title,
        evaluated=evaluated,
        error=calibration_error,
        reliability=reliability_chart,
        coverage=_coverage_chart,
        worst=mistakes,
    )


def reliability_chart(bins: list[Bin]) -> Drawing:
    """How often answers of a confidence are right; on the diagonal, as often as they say."""
    most = max(each.photos for each in bins)
    dots = Series(
        "",
        [(each.confidence, each.accuracy) for each in bins],
        joined=False,
        radii=[3 + 7 * math.sqrt(each.photos / most) for each in bins],
        hints=[
            f"{each.photos} pictures: sure {each.confidence:.2f}, right {each.accuracy:.2f}" for each in bins
        ],
    )
    return _of_shares([Series("", [(0, 0), (1, 1)], FAINT), dots], "calibration", "confidence")


def _coverage_chart(curve: list[Operating], at: Operating) -> Drawing:
    shown = [Series("", [(each.coverage, each.accuracy) for each in curve], COLOURS[2])]
    if not math.isnan(at.accuracy):
        shown.append(Series("", [(at.coverage, at.accuracy)], COLOURS[6], radii=[5], hints=["the threshold"]))
    return _of_shares(shown, "accuracy by coverage", "share answered")


def _of_shares(shown: list[Series], title: str, across: str) -> Drawing:
    whole, size = (0.0, 1.0), (340.0, 320.0)
    counts = (across, "share that is right")
    return lines(shown, title, counts, x_range=whole, y_range=whole, size=size)


def mistakes(
    part: Answered, temperature: float, labels: Sequence[str], count: int = _MISTAKES
) -> list[dict[str, Any]]:
    """The pictures about which the network is surest and wrong, the surest first."""
    probabilities = softmax(part.logits, temperature)
    answers = probabilities.argmax(axis=1)
    sure = np.where(answers == part.classes, -1.0, probabilities.max(axis=1))
    return [
        {
            "picture": base64.b64encode(part.picture(row)).decode(),
            "true": labels[part.classes[row]],
            "answer": labels[answers[row]],
            "sure": sure[row],
            "name": part.names[row],
        }
        for row in np.argsort(-sure)[:count]
        if sure[row] >= 0.0
    ]
