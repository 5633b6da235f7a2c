"""Scores of labelled pictures: their calibration, and the section of a report about them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.evaluation.accuracy import (
    Accuracy,
    Bin,
    Classes,
    Operating,
    Scores,
    accuracy,
    by_origin,
    calibration_error,
    choose_threshold,
    coverage_curve,
    coverage_text,
    fit_temperature,
    of_origins,
    operating_at,
    reliability,
)
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.labelled_pictures import origin_of
from gourmet.pictures.certainty import certain_subject_threshold, softmax
from gourmet.pictures.classifier import PictureClassifier
from gourmet.reports.chart import COLOURS, FAINT, Drawing, Series, lines, matrix
from gourmet.reports.report import Chart, Photo, Section, Table

CONFUSIONS: Final = "Who is taken for whom"
_MISTAKES: Final = 36
# The share of the pictures of the subject that may be taken for something else.
_REFUSED: Final = 0.01


@dataclass(frozen=True)
class LabelledScores:
    """A part of a data set and a network's answers to it."""

    logits: Scores
    classes: Classes  # as many as there are labels: none of them
    names: Sequence[str] = ()
    read: Callable[[Sequence[int]], Iterator[bytes]] = lambda rows: iter(())  # the pictures of some rows
    relevance: Scores | None = None  # [pictures], from networks that give it

    def select(self, rows: npt.NDArray[np.signedinteger[Any]]) -> LabelledScores:
        """Return some rows in this order."""
        return LabelledScores(
            self.logits[rows],
            self.classes[rows],
            [self.names[row] for row in rows],
            lambda some: self.read([int(rows[row]) for row in some]),
            None if self.relevance is None else self.relevance[rows],
        )

    def halves(self) -> tuple[LabelledScores, LabelledScores]:
        """Split the part by the pictures' names: choose on one half, measure on the other."""
        second = np.array([zlib.crc32(name.encode(errors="surrogateescape")) % 2 for name in self.names])
        return self.select(np.flatnonzero(second == 0)), self.select(np.flatnonzero(second))

    def probabilities(self, calibration: Calibration) -> Scores:
        """Return the calibrated probabilities, with zero for pictures that may not show the subject."""
        rows = softmax(self.logits, calibration.temperature)
        if self.relevance is None:
            return rows
        return (
            rows * (self.relevance >= certain_subject_threshold(calibration.subject_threshold))[:, np.newaxis]
        )

    def relevant(self, calibration: Calibration) -> npt.NDArray[np.bool_]:
        if self.relevance is None:
            return np.ones(len(self.classes), bool)
        return self.relevance >= calibration.subject_threshold


def calibrate(
    parts: Mapping[str, LabelledScores], accuracy_goals: Mapping[str, float], temperature: float = 0.0
) -> Calibration:
    """Choose temperature and thresholds.

    The threshold is the lowest at which each part reaches its share of right answers among those given.
    The threshold of the subject denies one in a hundred of these pictures. A `temperature` that is given
    is not chosen.
    """
    temperature = temperature or fit_temperature(*((part.logits, part.classes) for part in parts.values()))
    shown = [part.relevance for part in parts.values() if part.relevance is not None]
    subject = min(0.5, float(np.quantile(np.concatenate(shown), _REFUSED, method="lower"))) if shown else 0.0
    calibration = Calibration(temperature, 0.0, math.floor(1e4 * subject) / 1e4)
    threshold = max(
        choose_threshold(
            coverage_curve(part.probabilities(calibration), part.classes), accuracy_goals[name]
        ).threshold
        for name, part in parts.items()
    )
    return with_coverage(replace(calibration, threshold=threshold), [*parts.values()])


def with_coverage(calibration: Calibration, parts: Sequence[LabelledScores]) -> Calibration:
    """Add coverage and accuracy at other thresholds, over the pictures of all `parts`."""
    rows = np.concatenate([part.probabilities(calibration) for part in parts])
    classes = np.concatenate([part.classes for part in parts])
    return replace(calibration, coverage=coverage_text(calibration.threshold, rows, classes))


def measure_part(
    title: str,
    part: LabelledScores,
    labels: Sequence[str],
    calibration: Calibration,
    learned_from: Sequence[str] = (),
) -> Section:
    """Measure accuracy and calibration; `learned_from` are the sources that the network learned from."""
    measured = accuracy(part.logits, part.classes, labels)
    bins = reliability(softmax(part.logits, calibration.temperature), part.classes)
    after = calibration_error(bins)
    before = calibration_error(reliability(softmax(part.logits), part.classes))
    shown = part.probabilities(calibration)
    at = operating_at(calibration.threshold, shown, part.classes)
    facts = [
        ("top-1", f"{measured.top1:.4f}, top-3 {measured.top3:.4f}, top-5 {measured.top5:.4f}"),
        ("balanced", f"{measured.balanced:.4f} ± {measured.balanced_margin:.4f} (95 %)"),
        (
            "calibration",
            f"error {after:.4f}" + ("" if before == after else f", {before:.4f} before temperature scaling"),
        ),
    ]
    if at.threshold:
        right = "none" if math.isnan(at.accuracy) else f"{at.accuracy:.1%}"
        facts.append(("threshold", f"{at.coverage:.1%} reach {at.threshold:.4g}, {right} of them right"))
    by_source = by_origin(
        of_origins(part.logits.argmax(axis=1), part.classes, list(map(origin_of, part.names)))
    )
    sources = [
        (
            source,
            str(of_source["photos"]),
            f"{of_source['balanced']:.3f}",
            f"{of_source['top1']:.3f}",
            "learned from" if source in learned_from else "",
        )
        for source, of_source in by_source.items()
    ]

    def charts() -> list[Chart]:
        return [
            Chart("Calibration", _draw_reliability(bins), "As served."),
            Chart(
                "Right answers by the share answered", _draw_coverage(coverage_curve(shown, part.classes), at)
            ),
            Chart(CONFUSIONS, _draw_confusions(measured, labels), "In percent of the true class."),
        ]

    return Section(
        title,
        {
            **measured.as_dict(),
            "calibration_error_before": round(before, 4),
            "calibration_error_after": round(after, 4),
            "answered": round(at.coverage, 4),
            "right_of_answered": None if math.isnan(at.accuracy) else round(at.accuracy, 4),
            "denied": round(float(np.mean(~part.relevant(calibration))), 4),
            **({"by_source": by_source} if by_source else {}),
        },
        facts,
        [
            Table(("class", "pictures", "recall", "precision"), measured.rows()),
            Table(("source", "pictures", "balanced", "top-1", ""), sources),
        ],
        charts,
        "Worst mistakes",
        lambda: _mistakes(part, labels, calibration.temperature),
    )


def measure_rejections(title: str, part: LabelledScores, calibration: Calibration) -> Section:
    """Measure how often answers decline to name a label."""
    sure = part.probabilities(calibration).max(axis=1) >= calibration.threshold
    relevant = part.relevant(calibration)
    irrelevant, unsure = float(np.mean(~relevant)), float(np.mean(relevant & ~sure))
    return Section(
        title,
        {
            "photos": len(sure),
            "said to be something else": round(irrelevant, 4),
            "not sure": round(unsure, 4),
        },
        [("declined", f"{irrelevant:.1%} said to be something else, {unsure:.1%} not sure")],
    )


def shares(
    part: LabelledScores, calibration: Calibration, system: PictureClassifier
) -> dict[str, tuple[float, int]]:
    """Return shares by name, each with its number of pictures; a larger share is better.

    The shares are accuracy of each class, their mean, calibration, and refusals of other pictures.
    """
    shown = np.flatnonzero(part.classes < len(system.labels))
    none = np.flatnonzero(part.classes >= len(system.labels))
    logits, classes = part.logits[shown], part.classes[shown]
    answers, probabilities = logits.argmax(axis=1), part.probabilities(calibration)
    by_class = {
        label: (float(np.mean(answers[classes == number] == number)), int(rows))
        for number, label in enumerate(system.labels)
        if (rows := (classes == number).sum())
    }
    sure = operating_at(calibration.threshold, probabilities[shown], classes)
    by_name = {
        "every class alike": (float(np.mean([share for share, _ in by_class.values()])), len(shown)),
        **by_class,
        "sure": (sure.coverage, len(shown)),
        "right of the sure": (sure.accuracy, round(sure.coverage * len(shown))),
        "calibration": (
            1 - calibration_error(reliability(probabilities[shown], classes)),
            len(shown),
        ),
    }
    if len(none):
        not_sure = float(np.mean(probabilities[none].max(axis=1) < calibration.threshold))
        by_name[f"no {system.subject}: declined or not sure"] = not_sure, len(none)
    return by_name


def _draw_reliability(bins: list[Bin]) -> Drawing:
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
    return _draw_shares([Series("", [(0, 0), (1, 1)], FAINT), dots], "calibration", "confidence")


def _draw_coverage(curve: list[Operating], at: Operating) -> Drawing:
    shown = [Series("", [(point.coverage, point.accuracy) for point in curve], COLOURS[2])]
    if not math.isnan(at.accuracy):
        shown.append(Series("", [(at.coverage, at.accuracy)], COLOURS[6], radii=[5], hints=["the threshold"]))
    return _draw_shares(shown, "accuracy by coverage", "share answered")


def _draw_shares(shown: list[Series], title: str, across: str) -> Drawing:
    whole, size = (0.0, 1.0), (340.0, 320.0)
    counts = (across, "share that is right")
    return lines(shown, title, counts, x_range=whole, y_range=whole, size=size)


def _draw_confusions(measured: Accuracy, labels: Sequence[str]) -> Drawing:
    rows = {
        label: counts / counts.sum()
        for label, counts in zip(labels, measured.confusion, strict=True)
        if counts.any()
    }
    return matrix(rows, labels, CONFUSIONS, ("true", "answered"))


def _mistakes(part: LabelledScores, labels: Sequence[str], temperature: float) -> list[Photo]:
    """Return the pictures with the most confident wrong answers, the most confident first."""
    probabilities = softmax(part.logits, temperature)
    answers = probabilities.argmax(axis=1)
    sure = np.where(answers == part.classes, -1.0, probabilities.max(axis=1))
    rows = [row for row in np.argsort(-sure)[:_MISTAKES].tolist() if sure[row] >= 0.0]
    return [
        Photo(
            file,
            f"{labels[part.classes[row]]}, taken for {labels[answers[row]]} ({sure[row]:.2f})",
            part.names[row],
        )
        for row, file in zip(rows, part.read(rows), strict=True)
    ]
