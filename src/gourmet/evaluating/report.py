"""An evaluation as one HTML page with everything in it, pictures too."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape
from typing import Final

from gourmet.evaluating.accuracy import Accuracy
from gourmet.evaluating.calibration import Bin, Operating, calibration_error
from gourmet.evaluating.evaluate import Answered, Evaluation, Measured, worst

_MISTAKES: Final = 36
SIDE: Final = 260  # of a chart

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .6rem;text-align:right}
th:first-child,td:first-child{text-align:left}tr+tr{border-top:1px solid #ddd}
.matrix td{min-width:2.4rem;text-align:center}.matrix th.up{writing-mode:vertical-rl;text-align:left}
.charts{display:flex;flex-wrap:wrap;gap:1.5rem}.charts figcaption{max-width:17rem}
figure{margin:0}figcaption{font-size:13px;color:#555}
.mistakes{display:flex;flex-wrap:wrap;gap:1rem}.mistakes figure{width:9rem}
.mistakes img{width:9rem;height:9rem;object-fit:cover}
"""


def page(title: str, evaluation: Evaluation, labels: Sequence[str]) -> str:
    """The whole report."""
    parts = [_part(name, part, evaluation, labels) for name, part in evaluation.parts.items()]
    return document(
        title,
        f"<p>Temperature {evaluation.temperature:.3f}; answers below {evaluation.threshold:.2f} are "
        f"“not sure”, so that {100 * evaluation.wanted:g}% of those given are right. Both were chosen on "
        f"the validation photos, which were not trained on.</p>{''.join(parts)}",
    )


def document(title: str, body: str) -> str:
    """A page of our reports, needing no other file."""
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}</html>\n"
    )


def _part(name: str, part: Measured, evaluation: Evaluation, labels: Sequence[str]) -> str:
    found, at = part.accuracy, part.at_threshold
    views = "".join(f"<li>Balanced over {escape(k)}: {v:.3f}</li>" for k, v in part.views.items())
    before, after = calibration_error(part.before), calibration_error(part.after)
    return (
        f"<h2>{escape(name)}: {found.photos} photos</h2><ul>"
        f"<li>Balanced accuracy {found.balanced:.3f} ± {found.balanced_margin:.3f} (95 %)</li>"
        f"<li>Top-1 {found.top1:.3f}, top-3 {found.top3:.3f}</li>{views}"
        f"<li>Expected calibration error {before:.3f}, after temperature scaling {after:.3f}</li>"
        f"<li>At the threshold {at.coverage:.0%} are answered, {at.accuracy:.0%} of them rightly</li></ul>"
        f"{class_table(found)}<div class='charts'>"
        f"{figure('before: share that is right (up) by confidence, 0 to 1', reliability_chart(part.before))}"
        f"{figure('after temperature scaling: the same', reliability_chart(part.after))}"
        f"{figure('right of the answers given (up) by share answered', _coverage(part.curve, at))}</div>"
        f"<h3>Who is taken for whom</h3>{confusion_table(found, labels)}"
        f"<h3>Worst mistakes</h3>{mistakes(part.answered, evaluation.temperature, labels)}"
    )


def class_table(found: Accuracy) -> str:
    """How every class fared."""
    rows = "".join(
        f"<tr><td>{escape(each.label)}<td>{each.photos}<td>{each.recall:.3f}"
        f"<td>{'–' if math.isnan(each.precision) else f'{each.precision:.3f}'}"
        for each in found.classes
    )
    return f"<table><tr><th>class<th>photos<th>recall<th>precision{rows}</table>"


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


def figure(caption: str, drawing: str) -> str:
    """A drawing and what it shows."""
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def chart(*shapes: str) -> str:
    """A square of SIDE by SIDE with a grid under `shapes`."""
    grid = "".join(
        f"<path d='M{_at(t):.0f} 0V{SIDE}M0 {_at(t):.0f}H{SIDE}' stroke='#e5e5e5'/>"
        for t in (0.25, 0.5, 0.75)
    )
    frame = f"<rect width='{SIDE}' height='{SIDE}' fill='none' stroke='#999'/>"
    return f"<svg width='{SIDE}' height='{SIDE}' role='img'>{grid}{''.join(shapes)}{frame}</svg>"


def _at(share: float) -> float:
    return share * SIDE


def reliability_chart(bins: list[Bin]) -> str:
    """How often answers of a confidence are right; on the diagonal, as often as they say."""
    diagonal = f"<path d='M0 {SIDE}L{SIDE} 0' stroke='#999' stroke-dasharray='4 4'/>"
    most = max(each.photos for each in bins)
    dots = [
        f"<circle cx='{_at(each.confidence):.1f}' cy='{_at(1 - each.accuracy):.1f}' "
        f"r='{3 + 7 * math.sqrt(each.photos / most):.1f}' fill='#1b5e9b' fill-opacity='.7'>"
        f"<title>{each.photos} photos: sure {each.confidence:.2f}, right {each.accuracy:.2f}</title></circle>"
        for each in bins
    ]
    return chart(diagonal, *dots)


def _coverage(curve: list[Operating], at: Operating) -> str:
    points = " ".join(f"{_at(each.coverage):.1f},{_at(1 - each.accuracy):.1f}" for each in curve)
    line = f"<polyline points='{points}' fill='none' stroke='#2e7d32' stroke-width='2'/>"
    if math.isnan(at.accuracy):
        return chart(line)
    dot = f"<circle cx='{_at(at.coverage):.1f}' cy='{_at(1 - at.accuracy):.1f}' r='5' fill='#b3261e'/>"
    return chart(line, dot)


def mistakes(part: Answered, temperature: float, labels: Sequence[str]) -> str:
    """The photos about which the network is surest and wrong."""
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
