"""A check as one HTML page with everything in it: who is taken for whom, recall, calibration, latency."""

from __future__ import annotations

import math
from html import escape
from typing import Final

import numpy as np

from gourmet.reports import machine
from gourmet.reports.chart import Bar, bars, columns
from gourmet.reports.page import document, figure, paragraph, side_by_side, table, warning
from gourmet.reports.svg import Drawing
from gourmet.tasks.classification.accuracy import Accuracy
from gourmet.tasks.classification.checking.report import Report
from gourmet.tasks.classification.checking.summary import facts, headline
from gourmet.tasks.classification.evaluate import Answered
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
    wrong = [report.pictures.note] if report.pictures.note else []
    wrong += ["Stopped before the end.", *report.problems()] if report.stopped else report.problems()
    charts = []
    if report.quality:
        charts = [
            figure("Recall by class", "With its 95 % interval.", recall_chart(report.quality.accuracy)),
            figure("Calibration", "As served.", reliability_chart(report.quality.bins)),
        ]
    about = "; ".join(f"{name}: {value}" for name, value in machine.about().items())
    return document(
        f"gourmet check: {report.served.info.name}",
        [
            paragraph(headline(report)),
            warning("Look at this first", wrong),
            table((), facts(report), "facts"),
            side_by_side([*charts, *_loads(report)]),
            _answers(report),
            f"<p><small>{escape(about)}</small></p>",
        ],
        style=STYLE,
    )


def _loads(report: Report) -> list[str]:
    figures = []
    if times := report.asked.latencies_ms:
        counts, edges = np.histogram(times, bins=_BARS, range=(0.0, max(times)))
        drawing = columns(
            counts.tolist(),
            "requests by latency",
            ("ms", "requests"),
            step=float(edges[1]),
            mark=float(np.median(times)),
        )
        figures.append(figure("Latency", "The line is the median.", drawing))
    if sizes := report.counted.executions_by_batch:
        most = max(max(sizes), report.options.batch)
        counted = [sizes.get(size, 0) for size in range(1, most + 1)]
        drawing = columns(counted, "executions by rows", ("rows at once", "executions"), begins=0.5)
        figures.append(figure("Batches that really happened", "", drawing))
    return figures


def recall_chart(found: Accuracy) -> Drawing:
    """A bar a class, from 0 to 1."""
    shown = [
        Bar(each.label, each.recall, *_interval(each.recall, each.photos), says=f"{each.recall:.3f}")
        for each in found.classes
    ]
    return bars(shown, "recall by class", "recall", most=1.0, width=560)


def _interval(share: float, photos: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval, which stays between 0 and 1 for few photos too."""
    middle = (share + z * z / (2 * photos)) / (1 + z * z / photos)
    half = z * math.sqrt(share * (1 - share) / photos + z * z / (4 * photos * photos)) / (1 + z * z / photos)
    return max(0.0, middle - half), min(1.0, middle + half)


def _answers(report: Report) -> str:
    found, classes = report.quality, report.pictures.classes
    labels, furthest = report.served.labels, _furthest(report)
    if found is None or classes is None:
        return furthest
    rows = np.flatnonzero(report.asked.answered)
    answered = Answered(
        # Softmax makes the served probabilities of their logarithms again.
        logits=np.log(np.maximum(report.asked.probabilities[rows], 1e-12)),
        classes=classes[rows],
        names=[report.pictures.names[row] for row in rows],
        picture=lambda row: next(report.pictures.read(slice(rows[row], rows[row] + 1))),
    )
    return (
        f"<h2>Classes</h2>{class_table(found.accuracy)}"
        f"<h2>Who is taken for whom</h2>{confusion_table(found.accuracy, labels)}{furthest}"
        f"<h2>Worst mistakes</h2>{mistakes(answered, 1.0, labels)}"
    )


def _furthest(report: Report) -> str:
    rows = report.furthest_from_network()
    if not rows:
        return ""
    return "<h2>Furthest from the network</h2>" + table(("picture", "served", "network", "apart"), rows)
