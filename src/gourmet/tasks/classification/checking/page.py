"""A check as one HTML page with everything in it: who is taken for whom, recall, calibration, latency."""

from __future__ import annotations

from html import escape
from typing import Final

import numpy as np
from scipy.stats import binomtest

from gourmet.reports import machine
from gourmet.reports.chart import Bar, bars, columns
from gourmet.reports.page import document, figure, paragraph, side_by_side, table, warning
from gourmet.reports.svg import Drawing
from gourmet.tasks.classification.accuracy import Accuracy
from gourmet.tasks.classification.checking.reference_comparison import Agreement
from gourmet.tasks.classification.checking.report import Report
from gourmet.tasks.classification.evaluation import Answered
from gourmet.tasks.classification.evaluation_page import (
    STYLE,
    class_table,
    confusion_table,
    mistakes,
    reliability_chart,
)

_BARS: Final = 24


def page(report: Report) -> str:
    """The whole page."""
    stopped = ["Stopped before the end."] if report.stopped else []
    note = [report.pictures.note] if report.pictures.note else []
    about = "; ".join(f"{name}: {value}" for name, value in machine.about().items())
    return document(
        f"gourmet check: {report.served.info.name}",
        [
            paragraph(report.headline()),
            warning("Look at this first", [*note, *stopped, *report.problems()]),
            table((), report.facts(), "facts"),
            side_by_side(_charts(report)),
            *_answers(report),
            f"<p><small>{escape(about)}</small></p>",
        ],
        style=STYLE,
    )


def _charts(report: Report) -> list[str]:
    figures = []
    if report.quality:
        recall, bins = _recall(report.quality.accuracy), report.quality.bins
        figures.append(figure("Recall by class", "With its 95 % interval.", recall))
        figures.append(figure("Calibration", "As served.", reliability_chart(bins)))
    if times := report.asked.latencies_ms:
        counts, edges = np.histogram(times, bins=_BARS, range=(0.0, max(times)))
        step, median = float(edges[1]), float(np.median(times))
        drawing = columns(counts.tolist(), "requests by latency", ("ms", "requests"), step=step, mark=median)
        figures.append(figure("Latency", "The line is the median.", drawing))
    if sizes := report.counted.executions_by_batch:
        counted = [sizes.get(size, 0) for size in range(1, max(*sizes, report.wanted.batch) + 1)]
        drawing = columns(counted, "executions by rows", ("rows at once", "executions"), begins=0.5)
        figures.append(figure("Batches that really happened", "", drawing))
    return figures


def _recall(found: Accuracy) -> Drawing:
    """A bar a class, from 0 to 1."""
    shown = []
    for each in found.classes:
        right = binomtest(round(each.recall * each.photos), each.photos)
        low, high = right.proportion_ci(method="wilson")
        shown.append(Bar(each.label, each.recall, low, high, says=f"{each.recall:.3f}"))
    return bars(shown, "recall by class", "recall", most=1.0, width=560)


def _answers(report: Report) -> list[str]:
    labels, classes = report.served.labels, report.pictures.classes
    furthest = []
    if isinstance(report.eager, Agreement):
        heading = ("picture", "served", "network", "apart")
        furthest = [f"<h2>Furthest from the network</h2>{table(heading, report.eager.rows())}"]
    if report.quality is None or classes is None:
        return furthest
    rows = np.flatnonzero(report.asked.answered)
    answered = Answered(
        # Softmax makes the served probabilities of their logarithms again.
        logits=np.log(np.maximum(report.asked.probabilities[rows], 1e-12)),
        classes=classes[rows],
        names=[report.pictures.names[row] for row in rows],
        picture=lambda row: next(report.pictures.read([rows[row]])),
    )
    found = report.quality.accuracy
    return [
        f"<h2>Classes</h2>{class_table(found)}<h2>Who is taken for whom</h2>{confusion_table(found, labels)}",
        *furthest,
        f"<h2>Worst mistakes</h2>{mistakes(answered, 1.0, labels)}",
    ]
