"""A check as one HTML page with everything in it: who is taken for whom, recall, calibration, latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from gourmet.bench import machine
from gourmet.checking.report import Report
from gourmet.checking.summary import facts, headline
from gourmet.evaluating.accuracy import Accuracy
from gourmet.evaluating.evaluate import Answered
from gourmet.evaluating.report import (
    SIDE,
    chart,
    class_table,
    confusion_table,
    document,
    figure,
    mistakes,
    reliability_chart,
)
from gourmet.training.files import written_aside

_BARS: Final = 24
_BLUE, _RED = "#1b5e9b", "#b3261e"
_LABEL_WIDTH: Final = 130
_ROW: Final = 22


def write_page(out: Path, report: Report) -> Path:
    """Write the page to `out`, or into it if it is no .html file; returns where it lies."""
    path = out if out.suffix == ".html" else out / f"{report.served.name}.check.html"
    with written_aside(path) as aside:
        aside.write_text(page(report), encoding="utf-8")
    return path


def page(report: Report) -> str:
    """The whole page."""
    warnings = [report.pictures.note] if report.pictures.note else []
    warnings += ["Stopped before the end."] if report.stopped else []
    red = "".join(f"<p style='color:{_RED}'>{escape(words)}</p>" for words in warnings + report.problems())
    rows = "".join(
        f"<tr><td>{escape(name)}<td style='text-align:left'>{escape(value)}" for name, value in facts(report)
    )
    charts = (
        [
            figure("recall by class, with its 95 % interval", recall_chart(report.quality.accuracy)),
            figure(
                "share that is right (up) by confidence, 0 to 1, as served",
                reliability_chart(report.quality.bins),
            ),
        ]
        if report.quality
        else []
    )
    charts += _loads(report)
    about = "; ".join(f"{name}: {value}" for name, value in machine.about().items())
    return document(
        f"gourmet check: {report.served.name}",
        f"<p>{escape(headline(report))}</p>{red}<table>{rows}</table>"
        f"<div class='charts'>{''.join(charts)}</div>{_answers(report)}"
        f"<p><small>{escape(about)}</small></p>",
    )


def _loads(report: Report) -> list[str]:
    figures = []
    times = report.asked.latencies_ms
    if times:
        counts, edges = np.histogram(times, bins=_BARS, range=(0.0, max(times)))
        caption = (
            f"requests (up, most {counts.max()}) by latency, 0 to {edges[-1]:.0f} ms; the line is the median"
        )
        median = SIDE * float(np.median(times)) / float(edges[-1])
        line = f"<path d='M{median:.1f} 0V{SIDE}' stroke='{_RED}' stroke-dasharray='4 3'/>"
        figures.append(figure(caption, chart(*_bars(counts.tolist()), line)))
    sizes = report.counted.executions
    if sizes:
        most = max(max(sizes), report.pace.batch)
        caption = f"executions (up, most {max(sizes.values())}) by rows at once, 1 to {most}"
        figures.append(figure(caption, chart(*_bars([sizes.get(size, 0) for size in range(1, most + 1)]))))
    return figures


def _bars(counts: Sequence[int]) -> list[str]:
    width, most = SIDE / len(counts), max(counts)
    return [
        f"<rect x='{index * width + 0.5:.1f}' y='{SIDE * (1 - n / most):.1f}' width='{width - 1:.1f}' "
        f"height='{SIDE * n / most:.1f}' fill='{_BLUE}' fill-opacity='.8'><title>{n}</title></rect>"
        for index, n in enumerate(counts)
        if n
    ]


def recall_chart(found: Accuracy) -> str:
    """A bar a class, from 0 to 1."""
    bars = []
    for index, each in enumerate(found.classes):
        top, middle = index * _ROW + 3, index * _ROW + _ROW / 2
        low, high = (_LABEL_WIDTH + SIDE * share for share in _interval(each.recall, each.photos))
        bars.append(
            f"<text x='{_LABEL_WIDTH - 6}' y='{middle + 4}' text-anchor='end' font-size='12'>"
            f"{escape(each.label)}</text>"
            f"<rect x='{_LABEL_WIDTH}' y='{top}' width='{SIDE * each.recall:.1f}' height='{_ROW - 6}' "
            f"fill='{_BLUE}' fill-opacity='.8'><title>{each.recall:.3f} of {each.photos}</title></rect>"
            f"<path d='M{low:.1f} {middle}H{high:.1f}' stroke='#222' stroke-width='1.5'/>"
        )
    height = len(found.classes) * _ROW
    frame = f"<rect x='{_LABEL_WIDTH}' width='{SIDE}' height='{height}' fill='none' stroke='#999'/>"
    grid = "".join(
        f"<path d='M{_LABEL_WIDTH + SIDE * at} 0V{height}' stroke='#e5e5e5'/>" for at in (0.25, 0.5, 0.75)
    )
    size = f"width='{_LABEL_WIDTH + SIDE + 2}' height='{height + 1}'"
    return f"<svg {size} role='img'>{grid}{''.join(bars)}{frame}</svg>"


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
    if report.eager is None:
        return ""
    labels = report.served.labels
    rows = "".join(
        f"<tr><td>{escape(each.name)}<td>{escape(labels[each.served])} {each.served_sure:.3f}"
        f"<td>{escape(labels[each.eager])} {each.eager_sure:.3f}<td>{each.difference:.1e}"
        for each in report.eager.worst
    )
    table = f"<table><tr><th>picture<th>served<th>network<th>apart{rows}</table>"
    return f"<h2>Furthest from the network</h2>{table}"
