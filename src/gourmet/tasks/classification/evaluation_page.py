"""An evaluation as one HTML page with everything in it, pictures too."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np

from gourmet.pictures.probabilities import softmax
from gourmet.reports.chart import Series, lines
from gourmet.reports.page import bullets, document, figure, paragraph, side_by_side, table
from gourmet.reports.svg import COLOURS, Drawing
from gourmet.tasks.classification.accuracy import Accuracy
from gourmet.tasks.classification.calibration import Bin, Operating, calibration_error
from gourmet.tasks.classification.evaluation import Answered, Evaluated, Measured

_MISTAKES: Final = 36
STYLE: Final = """
.matrix td{min-width:2.4rem;text-align:center}.matrix th.up{writing-mode:vertical-rl;text-align:left}
.mistakes{display:flex;flex-wrap:wrap;gap:1rem}.mistakes figure{width:9rem;margin:0}
.mistakes img{width:9rem;height:9rem;object-fit:cover}.mistakes figcaption{font-weight:400;font-size:13px}
"""


def page(title: str, evaluation: Evaluated) -> str:
    """The whole report."""
    words = (
        f"Temperature {evaluation.temperature:.3f}; answers below {evaluation.threshold:.2f} are “not sure”, "
        f"so that {100 * evaluation.wanted:g}% of those given are right. Both were chosen on the validation "
        "pictures, which were not trained on."
    )
    parts = [_part(name, part, evaluation) for name, part in evaluation.parts.items()]
    return document(title, [paragraph(words), *parts], style=STYLE)


def _part(name: str, part: Measured, evaluation: Evaluated) -> str:
    labels, found, at = evaluation.labels, part.accuracy, part.at_threshold
    before, after = calibration_error(part.before), calibration_error(part.after)
    said = [
        f"Balanced accuracy {found.balanced:.3f} ± {found.balanced_margin:.3f} (95 %)",
        f"Top-1 {found.top1:.3f}, top-3 {found.top3:.3f}",
        *(f"Balanced over {view}: {value:.3f}" for view, value in part.views.items()),
        f"Expected calibration error {before:.3f}, after temperature scaling {after:.3f}",
        f"At the threshold {at.coverage:.0%} are answered, {at.accuracy:.0%} of them rightly",
    ]
    charts = side_by_side(
        [
            figure("Calibration before", "", reliability_chart(part.before)),
            figure("Calibration after temperature scaling", "", reliability_chart(part.after)),
            figure("Right answers by the share answered", "", _coverage(part.curve, at)),
        ]
    )
    return (
        f"<h2>{escape(name)}: {found.photos} pictures</h2>{bullets(said)}{class_table(found)}{charts}"
        f"<h3>Who is taken for whom</h3>{confusion_table(found, labels)}"
        f"<h3>Worst mistakes</h3>{mistakes(part.answered, evaluation.temperature, labels)}"
    )


def class_table(found: Accuracy) -> str:
    """How every class fared."""
    return table(("class", "pictures", "recall", "precision"), found.rows())


def confusion_table(found: Accuracy, labels: Sequence[str]) -> str:
    """The confusion matrix, a row a true class."""
    head = "".join(f"<th class='up'>{escape(label)}" for label in labels)
    rows = []
    for label, counts in zip(labels, found.confusion, strict=True):
        total = int(counts.sum())
        if total:
            cells = "".join(
                f"<td style='background:rgba(27,94,155,{n / total:.2f});"
                f"color:{'#fff' if n / total > 0.5 else '#222'}'>{100 * n / total:.0f}"
                for n in counts
            )
            rows.append(f"<tr><th>{escape(label)}{cells}")
    return (
        f"<table class='matrix'><tr><th>true ↓ answered →{head}{''.join(rows)}</table>"
        "<p>Percent of the true class.</p>"
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
    return _of_shares([dots], "calibration", "confidence", diagonal=True)


def _coverage(curve: list[Operating], at: Operating) -> Drawing:
    shown = [Series("", [(each.coverage, each.accuracy) for each in curve], COLOURS[2])]
    if not math.isnan(at.accuracy):
        shown.append(Series("", [(at.coverage, at.accuracy)], COLOURS[6], radii=[5], hints=["the threshold"]))
    return _of_shares(shown, "accuracy by coverage", "share answered")


def _of_shares(shown: list[Series], title: str, across: str, *, diagonal: bool = False) -> Drawing:
    whole, size = (0.0, 1.0), (340.0, 320.0)
    counts = (across, "share that is right")
    return lines(shown, title, counts, x_range=whole, y_range=whole, size=size, diagonal=diagonal)


def worst(part: Answered, temperature: float, count: int) -> list[tuple[int, int, float]]:
    """Row, answer and probability of the mistakes made with the most confidence."""
    probabilities = softmax(part.logits, temperature)
    answers = probabilities.argmax(axis=1)
    sure = np.where(answers == part.classes, -1.0, probabilities.max(axis=1))
    rows = [int(row) for row in np.argsort(-sure)[:count] if sure[row] >= 0.0]
    return [(row, int(answers[row]), float(sure[row])) for row in rows]


def mistakes(part: Answered, temperature: float, labels: Sequence[str]) -> str:
    """The pictures about which the network is surest and wrong."""
    figures = []
    for row, answer, sure in worst(part, temperature, _MISTAKES):
        picture = base64.b64encode(part.picture(row)).decode()
        true = labels[int(part.classes[row])]
        figures.append(
            f"<figure><img alt='' src='data:image;base64,{picture}'>"
            f"<figcaption>{escape(true)}, taken for {escape(labels[answer])} ({sure:.2f})<br>"
            f"{escape(part.names[row])}</figcaption></figure>"
        )
    return f"<div class='mistakes'>{''.join(figures)}</div>"
