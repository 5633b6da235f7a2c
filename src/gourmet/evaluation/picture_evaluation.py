"""Ask a network about every picture of a data set, as when it is served, and measure its answers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.evaluation import evaluation_file
from gourmet.evaluation.accuracy import (
    Accuracy,
    Bin,
    Classes,
    OfOrigin,
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
    origin_lines,
    reliability,
)
from gourmet.evaluation.calibration import Calibration, calibration_of
from gourmet.evaluation.labelled_pictures import ALL, LabelledPictures, decode, origin_of
from gourmet.evaluation.system_parts import BadData, Data, EvaluateOptions, Load, Stage, evenly
from gourmet.pictures.classifier import PictureClassifier, relevance, softmax, surely
from gourmet.progress import ReportProgress
from gourmet.served.files import write_whole
from gourmet.served.instances import available_cpus

if TYPE_CHECKING:
    from torch import nn

_ROWS: Final = 64
_MADE_UP: Final = 240
# The share of the pictures of the subject that may be taken for something else.
_REFUSED: Final = 0.01
# For networks from elsewhere: the name of the given data, and the share of sure answers to be right.
GIVEN: Final = "given"
_GOAL: Final = 0.9
_CALIBRATED_ON: Final = 1000
MIN_CALIBRATED: Final = 20
_MIN_THRESHOLD: Final = 1e-4  # as configs write it; 0 means that nobody measured it


@dataclass(frozen=True)
class Answered:
    """A part of a data set and the network's answers to it."""

    logits: Scores
    classes: Classes  # as many as there are labels: none of them
    names: Sequence[str] = ()
    read: Callable[[Sequence[int]], Iterator[bytes]] = lambda rows: iter(())  # the pictures of some rows
    relevance: Scores | None = None  # [pictures], from networks that give it

    def some(self, rows: npt.NDArray[np.signedinteger[Any]]) -> Answered:
        """Return some rows in this order."""
        return Answered(
            self.logits[rows],
            self.classes[rows],
            [self.names[row] for row in rows],
            lambda some: self.read([int(rows[row]) for row in some]),
            None if self.relevance is None else self.relevance[rows],
        )

    def halves(self) -> tuple[Answered, Answered]:
        """Split the part by the pictures' names: choose on one half, measure on the other."""
        second = np.array([zlib.crc32(name.encode(errors="surrogateescape")) % 2 for name in self.names])
        return self.some(np.flatnonzero(second == 0)), self.some(np.flatnonzero(second))

    def probabilities(self, calibration: Calibration) -> Scores:
        """Return the calibrated probabilities, with zero for pictures that may not show the subject."""
        rows = softmax(self.logits, calibration.temperature)
        if self.relevance is None:
            return rows
        return rows * (self.relevance >= surely(calibration.subject_threshold))[:, np.newaxis]

    def relevant(self, calibration: Calibration) -> npt.NDArray[np.bool_]:
        assert self.relevance is not None
        return self.relevance >= calibration.subject_threshold


@dataclass(frozen=True)
class Measured:
    """The measurements of one part."""

    answered: Answered
    accuracy: Accuracy
    bins: list[Bin]  # after temperature scaling
    error_before: float  # of calibration, before temperature scaling
    curve: list[Operating]
    at_threshold: Operating
    denied: float  # the share that is said to show something else
    origins: list[OfOrigin]  # by where the pictures are from, where their names tell that

    @property
    def error(self) -> float:
        """The calibration error of the probabilities as they are served."""
        return calibration_error(self.bins)

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield name and value of each measurement but for the classes, for a terminal and a page."""
        accuracy, at = self.accuracy, self.at_threshold
        yield "top-1", f"{accuracy.top1:.4f}, top-3 {accuracy.top3:.4f}, top-5 {accuracy.top5:.4f}"
        yield "balanced", f"{accuracy.balanced:.4f} ± {accuracy.balanced_margin:.4f} (95 %)"
        before = (
            "" if self.error_before == self.error else f", {self.error_before:.4f} before temperature scaling"
        )
        yield "calibration", f"error {self.error:.4f}{before}"
        if at.threshold:
            right = "none" if math.isnan(at.accuracy) else f"{at.accuracy:.1%}"
            yield "threshold", f"{at.coverage:.1%} reach {at.threshold:.4g}, {right} of them right"

    def as_dict(self) -> dict[str, Any]:
        right = self.at_threshold.accuracy
        return {
            **self.accuracy.as_dict(),
            "calibration_error_before": round(self.error_before, 4),
            "calibration_error_after": round(self.error, 4),
            "answered": round(self.at_threshold.coverage, 4),
            "right_of_answered": None if math.isnan(right) else round(right, 4),
            "denied": round(self.denied, 4),
            **({"by_source": by_origin(self.origins)} if self.origins else {}),
        }


@dataclass(frozen=True)
class Declined:
    """The shares of answers that decline to name a label."""

    pictures: int
    irrelevant: float  # the share that is said to show something else
    unsure: float  # the share of which no label is sure, beside those

    def __str__(self) -> str:
        return f"{self.irrelevant:.1%} said to be something else, {self.unsure:.1%} not sure"

    def as_dict(self) -> dict[str, Any]:
        shares = {"said to be something else": self.irrelevant, "not sure": self.unsure}
        return {"photos": self.pictures, **{name: round(s, 4) for name, s in shares.items()}}


@dataclass(frozen=True)
class EvaluatedClassifier:
    """A temperature and thresholds, chosen on pictures held out of training, and every part measured."""

    calibration: Calibration
    accuracy_goals: Mapping[str, float]  # by part: the share of the sure answers that should be right
    parts: dict[str, Measured]
    others: dict[str, Declined]
    labels: Sequence[str]
    # Measured by training on held-out sources, if it held some out.
    held_out: Mapping[str, Any] = field(default_factory=dict)
    learned_from: Sequence[str] = ()  # the sources of the pictures that the network learned from

    def as_dict(self) -> dict[str, Any]:
        measured: Mapping[str, Measured | Declined] = {**self.parts, **self.others}
        return {**self.held_out, **{name: part.as_dict() for name, part in measured.items()}}

    def lines(self) -> list[str]:
        parts = [
            f"{name}: balanced {part.accuracy.balanced:.3f} ± {part.accuracy.balanced_margin:.3f}, "
            f"top-1 {part.accuracy.top1:.3f}, top-3 {part.accuracy.top3:.3f}, {part.accuracy.photos} pictures"
            + "".join(f"\n  {line}" for line in origin_lines(part.origins, self.learned_from))
            for name, part in self.parts.items()
        ]
        parts += [f"{name}: {part.pictures} pictures, {part}" for name, part in self.others.items()]
        chosen = self.calibration
        return [
            *parts,
            f"temperature {chosen.temperature:.3f}, threshold {chosen.threshold:.3f}, "
            f"subject_threshold {chosen.subject_threshold:.3f}",
        ]

    def write(self, weights: Path, title: str) -> Path:
        """Write the files for deployment and a report beside the weights; return the path of the report."""
        from gourmet.evaluation import pages

        report, chosen = weights.with_suffix(".report.html"), self.calibration
        goals = " and ".join(
            f"{100 * share:g}% of those given on {part} pictures"
            for part, share in self.accuracy_goals.items()
        )
        page = pages.answers_page(
            title,
            f"Temperature {chosen.temperature:.3f}; answers below {chosen.threshold:.2f} are “not sure”, so "
            f"that {goals} are right. Both were chosen on pictures that were not trained on.",
            self.parts,
            self.labels,
            temperature=chosen.temperature,
            facts=[(f"{name}, {part.pictures} pictures", str(part)) for name, part in self.others.items()],
            learned_from=self.learned_from,
        )
        write_whole(report, page)
        write_whole(weights.with_suffix(".confusions.svg"), pages.confusions(title, self))
        evaluation_file.write(weights, calibration=vars(self.calibration), accuracy=self.as_dict())
        return report


@dataclass(frozen=True)
class ClassifierEvaluation:
    """Evaluate a classifier; fulfils `gourmet.evaluation.system_parts.Evaluation`."""

    system: PictureClassifier
    data: Data
    load: Load
    # The share of the sure answers that should be right, by the part that is chosen on: all of the validation
    # part, and half of any other.
    accuracy_goals: Mapping[str, float] = field(default_factory=lambda: {"validation": 0.75})

    def evaluate(self, options: EvaluateOptions, stage: Stage) -> EvaluatedClassifier:
        data, limit, device = options.data, options.limit, options.device
        network, about = self.load(options.weights, options.architecture)
        answered = {}
        for part in self.data.parts(data):
            with stage(part) as tick:
                answered[part] = self.answers(network, data, part, limit=limit, device=device, tick=tick)
        if self.system.subject:
            with stage("made up") as tick:
                answered["made up"] = self.made_up(network, device, tick)
        chosen = about.get("calibration")  # by training, on sources that it held out
        evaluated = evaluate(
            answered,
            self.system.labels,
            self.accuracy_goals,
            calibration_of(chosen, options.weights) if chosen else None,
        )
        return replace(evaluated, held_out=about.get("accuracy", {}), learned_from=about.get("sources", ()))

    def answers(
        self,
        network: nn.Module,
        data: Path,
        part: str,
        *,
        limit: int | None,
        device: str,
        tick: ReportProgress,
    ) -> Answered:
        """Return the network's answers to the pictures of `part`."""
        pictures = self.data.listing(data, part, limit)
        logits = ask(network, self.system, self.data.read(pictures), len(pictures), tick, device)
        return Answered(
            logits,
            classes=np.array([picture.class_id for picture in pictures]),
            names=[picture.name for picture in pictures],
            read=lambda rows: self.data.read([pictures[row] for row in rows]),
            relevance=relevance(logits) if self.system.subject else None,
        )

    def made_up(self, network: nn.Module, device: str, tick: ReportProgress) -> Answered:
        """Return the network's answers to made-up pictures, which do not show the subject."""
        files = self.system.nothing(_MADE_UP, seed=1)
        logits = ask(network, self.system, iter(files), len(files), tick, device)
        none = np.full(len(files), len(self.system.labels))
        names = [f"made up {number}" for number, _ in enumerate(files, 1)]
        return Answered(logits, none, names, lambda rows: map(files.__getitem__, rows), relevance(logits))


def ask(
    network: nn.Module,
    system: PictureClassifier,
    pictures: Iterator[bytes],
    total: int,
    tick: ReportProgress,
    device: str = "cpu",
) -> Scores:
    """Return the network's logits for pictures, prepared as when it is served."""
    import torch

    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    encode, logits = partial(system.encode, datatype="FP32"), []
    with ThreadPoolExecutor(available_cpus()) as pool, torch.inference_mode():
        while blobs := list(islice(pictures, _ROWS)):
            rows = torch.from_numpy(np.concatenate(list(pool.map(encode, blobs))))
            images = rows.to(device).contiguous(memory_format=torch.channels_last)
            logits.append(network(images).float().cpu().numpy())
            tick(min(1.0, _ROWS * len(logits) / total))
    return np.concatenate(logits)


def evaluate(
    parts: Mapping[str, Answered],
    labels: Sequence[str],
    accuracy_goals: Mapping[str, float],
    calibration: Calibration | None = None,
) -> EvaluatedClassifier:
    """Measure all parts with `calibration`, or with one that is chosen on some of them.

    The validation part is there for choosing; of other parts that `accuracy_goals` names, half is used, and
    the other half measured on its own.
    """
    labelled = {name: part for name, part in parts.items() if part.classes[0] < len(labels)}
    if calibration is None:
        chosen_on = {}
        for name in accuracy_goals:
            if name == "validation":
                chosen_on[name] = labelled[name]
            elif name in labelled:
                chosen_on[name], labelled[f"{name}, the half not chosen on"] = labelled[name].halves()
        calibration = calibrate(chosen_on, accuracy_goals)
    measured = {name: measure(part, labels, calibration) for name, part in labelled.items()}
    others = {name: declined(part, calibration) for name, part in parts.items() if name not in labelled}
    return EvaluatedClassifier(calibration, accuracy_goals, measured, others, labels)


def calibrated(
    system: PictureClassifier,
    data: LabelledPictures,
    folder: Path,
    answers: Callable[[npt.NDArray[Any]], Scores],
    tick: ReportProgress,
) -> EvaluatedClassifier:
    """Calibrate a network from elsewhere: temperature and threshold from its answers to labelled pictures.

    What gives probabilities has no temperature.
    """
    photos = evenly(data.listing(folder, ALL), _CALIBRATED_ON)
    if len(photos) < MIN_CALIBRATED:
        raise BadData(
            f"{folder} has {len(photos)} pictures: {MIN_CALIBRATED} or more tell how sure it may be"
        )
    (pixels,) = decode((photos,), system.input_size, tick)
    rows = np.concatenate([answers(pixels.images[at : at + 16]) for at in range(0, len(photos), 16)])
    is_logits = bool(system.logit_outputs)
    if not is_logits:
        rows = np.log(np.maximum(rows, 1e-12))
    part = Answered(
        rows,
        pixels.classes,
        [photo.name for photo in photos],
        lambda rows: data.read([photos[row] for row in rows]),
    )
    goals = {GIVEN: _GOAL}
    chosen = calibrate({GIVEN: part}, goals, 0.0 if is_logits else 1.0)
    chosen = _with_coverage(replace(chosen, threshold=max(chosen.threshold, _MIN_THRESHOLD)), [part])
    return EvaluatedClassifier(
        chosen, goals, {GIVEN: measure(part, system.labels, chosen)}, {}, system.labels
    )


def calibrate(
    parts: Mapping[str, Answered], accuracy_goals: Mapping[str, float], temperature: float = 0.0
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
    return _with_coverage(replace(calibration, threshold=threshold), [*parts.values()])


def _with_coverage(calibration: Calibration, parts: Sequence[Answered]) -> Calibration:
    """Add coverage and accuracy at other thresholds, over the pictures of all `parts`."""
    rows = np.concatenate([part.probabilities(calibration) for part in parts])
    classes = np.concatenate([part.classes for part in parts])
    return replace(calibration, coverage=coverage_text(calibration.threshold, rows, classes))


def measure(part: Answered, labels: Sequence[str], calibration: Calibration) -> Measured:
    measured = accuracy(part.logits, part.classes, labels)
    shown = part.probabilities(calibration)
    return Measured(
        answered=part,
        accuracy=measured,
        bins=reliability(softmax(part.logits, calibration.temperature), part.classes),
        error_before=calibration_error(reliability(softmax(part.logits), part.classes)),
        curve=coverage_curve(shown, part.classes),
        at_threshold=operating_at(calibration.threshold, shown, part.classes),
        denied=0.0 if part.relevance is None else float(np.mean(~part.relevant(calibration))),
        origins=of_origins(part.logits.argmax(axis=1), part.classes, list(map(origin_of, part.names))),
    )


def declined(part: Answered, calibration: Calibration) -> Declined:
    sure = part.probabilities(calibration).max(axis=1) >= calibration.threshold
    relevant = np.ones(len(sure), bool) if part.relevance is None else part.relevant(calibration)
    return Declined(len(sure), float(np.mean(~relevant)), float(np.mean(relevant & ~sure)))


def shares(
    answered: Answered, calibration: Calibration, system: PictureClassifier
) -> dict[str, tuple[float, int]]:
    """Return shares by name, each with its number of pictures; a larger share is better.

    The shares are accuracy of each class, their mean, calibration, and refusals of other pictures.
    """
    shown = np.flatnonzero(answered.classes < len(system.labels))
    none = np.flatnonzero(answered.classes >= len(system.labels))
    logits, classes = answered.logits[shown], answered.classes[shown]
    answers, probabilities = logits.argmax(axis=1), answered.probabilities(calibration)
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
