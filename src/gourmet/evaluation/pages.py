"""Write the HTML page of an evaluation or of a check; the page contains its pictures."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gourmet.evaluation.accuracy import Accuracy, Bin, Operating, origin_lines
from gourmet.evaluation.picture_evaluation import EvaluatedClassifier, Measured
from gourmet.pictures.classifier import softmax
from gourmet.reports import machine
from gourmet.reports.chart import COLOURS, FAINT, Drawing, Series, lines, matrix, stacked
from gourmet.reports.page import render

_MISTAKES = 36


def answers_page(
    title: str,
    intro: str,
    parts: Mapping[str, Measured],
    labels: Sequence[str],
    *,
    temperature: float = 1.0,
    problems: Sequence[str] = (),
    facts: Sequence[tuple[str, str]] = (),
    tables: Mapping[Sequence[str], Sequence[Sequence[str]]] | None = None,
    learned_from: Sequence[str] = (),
) -> str:
    """Return the page of labelled answers by part; `tables` are more rows by their headings."""
    return render(
        "evaluation/answers.html",
        title=title,
        intro=intro,
        problems=problems,
        facts=facts,
        parts=parts,
        tables=tables or {},
        reliability=_reliability,
        coverage=_coverage,
        confusions=lambda part: _confusions(part.accuracy, labels),
        sources=lambda part: origin_lines(part.origins, learned_from),
        worst=lambda part: mistakes(part, labels, temperature),
        machine=machine.about(),
    )


def confusions(title: str, evaluated: EvaluatedClassifier) -> Drawing:
    """Draw the confusion matrix of every part as one picture."""
    parts = [
        (f"{name}, in percent of the true class", _confusions(part.accuracy, evaluated.labels))
        for name, part in evaluated.parts.items()
    ]
    return stacked(title, parts)


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


def mistakes(part: Measured, labels: Sequence[str], temperature: float) -> list[dict[str, Any]]:
    """Return the pictures with the most confident wrong answers, the most confident first."""
    answered = part.answered
    probabilities = softmax(answered.logits, temperature)
    answers = probabilities.argmax(axis=1)
    sure = np.where(answers == answered.classes, -1.0, probabilities.max(axis=1))
    rows = [row for row in np.argsort(-sure)[:_MISTAKES].tolist() if sure[row] >= 0.0]
    return [
        {
            "picture": base64.b64encode(picture).decode(),
            "true": labels[answered.classes[row]],
            "answer": labels[answers[row]],
            "sure": sure[row],
            "name": answered.names[row],
        }
        for row, picture in zip(rows, answered.read(rows), strict=True)
    ]
