"""A check as one HTML page with everything in it: who is taken for whom, recall, calibration, latency."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scipy.stats import binomtest

from gourmet.reports import machine
from gourmet.reports.chart import Bar, bars, columns
from gourmet.reports.page import render
from gourmet.reports.svg import Drawing
from gourmet.tasks.classification.accuracy import Accuracy
from gourmet.tasks.classification.checking.report import Report
from gourmet.tasks.classification.evaluation import Answered
from gourmet.tasks.classification.evaluation_page import mistakes, reliability_chart

_BARS: Final = 24


def page(report: Report) -> str:
    """The whole page."""
    return render(
        "tasks/classification/checking/check.html",
        title=f"gourmet check: {report.served.info.name}",
        report=report,
        recall=_recall,
        reliability=reliability_chart,
        latencies=_latencies,
        batches=_batches,
        worst=_worst,
        machine=machine.about(),
    )


def _recall(found: Accuracy) -> Drawing:
    """A bar a class, from 0 to 1."""
    shown = []
    for each in found.classes:
        right = binomtest(round(each.recall * each.photos), each.photos)
        low, high = right.proportion_ci(method="wilson")
        shown.append(Bar(each.label, each.recall, low, high, says=f"{each.recall:.3f}"))
    return bars(shown, "recall by class", "recall", most=1.0, width=560)


def _latencies(report: Report) -> Drawing:
    times = report.asked.latencies_ms
    counts, edges = np.histogram(times, bins=_BARS, range=(0.0, max(times)))
    says, median = ("ms", "requests"), float(np.median(times))
    return columns(counts.tolist(), "requests by latency", says, step=float(edges[1]), mark=median)


def _batches(report: Report) -> Drawing:
    sizes = report.counted.executions_by_batch
    counts = [sizes.get(size, 0) for size in range(1, max(*sizes, report.wanted.batch) + 1)]
    return columns(counts, "executions by rows", ("rows at once", "executions"), begins=0.5)


def _worst(report: Report) -> list[dict[str, Any]]:
    rows, classes = np.flatnonzero(report.asked.answered), report.pictures.classes
    assert classes is not None
    answered = Answered(
        # Softmax makes the served probabilities of their logarithms again.
        logits=np.log(np.maximum(report.asked.probabilities[rows], 1e-12)),
        classes=classes[rows],
        names=[report.pictures.names[row] for row in rows],
        picture=lambda row: next(report.pictures.read([rows[row]])),
    )
    return mistakes(answered, 1.0, report.served.labels)
