"""Write the HTML pages of an evaluation and of a check; each page contains its pictures."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from gourmet.pictures.classifier import softmax
from gourmet.reports import machine
from gourmet.reports.chart import COLOURS, FAINT, Bar, Drawing, Series, bars, columns, lines, matrix, stacked
from gourmet.reports.page import render
from gourmet.tasks.classification.accuracy import Accuracy, Bin, Classes, Operating, Scores, calibration_error
from gourmet.tasks.classification.check import PictureReport
from gourmet.tasks.classification.evaluation import Answered, EvaluatedClassifier


def evaluation_page(title: str, evaluated: EvaluatedClassifier) -> str:
    def worst(part: Answered) -> list[dict[str, Any]]:
        probabilities = softmax(part.logits, evaluated.calibration.temperature)
        return mistakes(probabilities, part.classes, part.names, part.picture, evaluated.labels)

    return render(
        "tasks/classification/evaluation.html",
        title=title,
        evaluated=evaluated,
        error=calibration_error,
        reliability=_reliability,
        coverage=_coverage,
        confusions=_confusions,
        worst=worst,
    )


def confusions(title: str, evaluated: EvaluatedClassifier) -> Drawing:
    """Draw the confusion matrix of every part as one picture."""
    parts = [
        (f"{name}, in percent of the true class", _confusions(part.accuracy, evaluated.labels))
        for name, part in evaluated.parts.items()
    ]
    return stacked(title, parts)


def check_page(report: PictureReport) -> str:
    pictures = report.pictures

    def worst() -> list[dict[str, Any]]:
        assert pictures.classes is not None
        answered, read = np.flatnonzero(report.answers.answered), pictures.read
        names, probabilities = (
            [pictures.names[row] for row in answered],
            report.answers.probabilities[answered],
        )
        labels = report.served.labels
        return mistakes(
            probabilities, pictures.classes[answered], names, lambda row: next(read([answered[row]])), labels
        )

    return render(
        "tasks/classification/check.html",
        title=f"gourmet check: {report.served.info.name}",
        report=report,
        recall=_recall,
        reliability=_reliability,
        latencies=_latencies,
        batches=_batches,
        confusions=_confusions,
        worst=worst,
        machine=machine.about(),
    )


def _reliability(bins: list[Bin]) -> Drawing:
    """Draw how often answers of each confidence are right; the diagonal is perfect calibration."""
    largest = max(one_bin.photos for one_bin in bins)
    dots = Series(
        "",
        [(one_bin.confidence, one_bin.accuracy) for one_bin in bins],
        joined=False,
        radii=[3 + 7 * math.sqrt(one_bin.photos / largest) for one_bin in bins],
        hints=[
            f"{one_bin.photos} pictures: sure {one_bin.confidence:.2f}, right {one_bin.accuracy:.2f}"
            for one_bin in bins
        ],
    )
    return _of_shares([Series("", [(0, 0), (1, 1)], FAINT), dots], "calibration", "confidence")


def _coverage(curve: list[Operating], at: Operating) -> Drawing:
    shown = [Series("", [(point.coverage, point.accuracy) for point in curve], COLOURS[2])]
    if not math.isnan(at.accuracy):
        shown.append(Series("", [(at.coverage, at.accuracy)], COLOURS[6], radii=[5], hints=["the threshold"]))
    return _of_shares(shown, "accuracy by coverage", "share answered")


def _of_shares(shown: list[Series], title: str, across: str) -> Drawing:
    whole, size = (0.0, 1.0), (340.0, 320.0)
    counts = (across, "share that is right")
    return lines(shown, title, counts, x_range=whole, y_range=whole, size=size)


def _confusions(measured: Accuracy, labels: Sequence[str]) -> Drawing:
    rows = {
        label: counts / counts.sum()
        for label, counts in zip(labels, measured.confusion, strict=True)
        if counts.any()
    }
    return matrix(rows, labels, "Who is taken for whom", ("true", "answered"))


def mistakes(
    probabilities: Scores,
    classes: Classes,
    names: Sequence[str],
    picture: Callable[[int], bytes],
    labels: Sequence[str],
    count: int = 36,
) -> list[dict[str, Any]]:
    """Return the pictures with the most confident wrong answers, the most confident first."""
    answers = probabilities.argmax(axis=1)
    sure = np.where(answers == classes, -1.0, probabilities.max(axis=1))
    return [
        {
            "picture": base64.b64encode(picture(row)).decode(),
            "true": labels[classes[row]],
            "answer": labels[answers[row]],
            "sure": sure[row],
            "name": names[row],
        }
        for row in np.argsort(-sure)[:count]
        if sure[row] >= 0.0
    ]


def _recall(measured: Accuracy) -> Drawing:
    """Draw the recall of each class as a bar from 0 to 1."""
    shown = []
    for row in measured.classes:
        low, high = _wilson(row.recall, row.photos)
        shown.append(Bar(row.label, row.recall, low, high, says=f"{row.recall:.3f}"))
    return bars(shown, "recall by class", "recall", end=1.0)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z = NormalDist().inv_cdf(0.975)
    middle = share + z * z / (2 * count)
    width = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return (middle - width) / (1 + z * z / count), (middle + width) / (1 + z * z / count)


def _latencies(report: PictureReport) -> Drawing:
    times = report.replies.latencies_ms
    counts, edges = np.histogram(times, bins=24, range=(0.0, max(times)))
    says, median = ("ms", "requests"), float(np.median(times))
    return columns(counts.tolist(), "requests by latency", says, step=float(edges[1]), mark=median)


def _batches(report: PictureReport) -> Drawing:
    sizes = report.replies.counted.executions_by_batch
    counts = [sizes.get(size, 0) for size in range(1, max(*sizes, report.options.batch) + 1)]
    return columns(counts, "executions by rows", ("rows at once", "executions"), begins=0.5)
