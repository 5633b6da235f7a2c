"""Ask a network about every picture of a data set, as when it is served, and measure its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.evaluation.accuracy import Scores
from gourmet.evaluation.calibration import Calibration, calibration_of
from gourmet.evaluation.labelled_pictures import ALL, LabelledPictures, decode
from gourmet.evaluation.picture_scores import (
    LabelledScores,
    calibrate,
    measure_part,
    measure_rejections,
    with_coverage,
)
from gourmet.evaluation.system_parts import BadData, Data, EvaluateOptions, Load, sample_per_class
from gourmet.pictures.certainty import relevance
from gourmet.pictures.classifier import PictureClassifier
from gourmet.progress import ProgressBar, ReportProgress
from gourmet.reports.report import Report
from gourmet.served.instances import available_cpus

if TYPE_CHECKING:
    from torch import nn

_ROWS: Final = 64
_MADE_UP: Final = 240
# For networks from elsewhere: the name of the given data, and the share of sure answers to be right.
GIVEN: Final = "given"
_GOAL: Final = 0.9
_CALIBRATED_ON: Final = 1000
MIN_CALIBRATED: Final = 20
_MIN_THRESHOLD: Final = 1e-4  # as configs write it; 0 means that nobody measured it


@dataclass(frozen=True)
class ClassifierEvaluation:
    """Evaluate a classifier; fulfils `gourmet.evaluation.system_parts.Evaluation`."""

    system: PictureClassifier
    data: Data
    load: Load
    # The share of the sure answers that should be right, by the part that is chosen on: all of the validation
    # part, and half of any other.
    accuracy_goals: Mapping[str, float] = field(default_factory=lambda: {"validation": 0.75})

    def evaluate(self, options: EvaluateOptions, progress_bar: ProgressBar) -> tuple[Report, dict[str, Any]]:
        network, about = self.load(options.weights, options.architecture)
        parts = {}
        for part in self.data.parts(options.data):
            with progress_bar(part) as on_progress:
                pictures = self.data.listing(options.data, part, options.limit)
                parts[part] = self.answers_to(network, pictures, options.device, on_progress)
        if self.system.subject:
            with progress_bar("made up") as on_progress:
                parts["made up"] = self._made_up(network, options.device, on_progress)
        chosen = about.get("calibration")  # by training, on sources that it held out
        calibration, report = evaluate_parts(
            f"{self.system.name}: {options.weights.name}",
            parts,
            self.system.labels,
            self.accuracy_goals,
            calibration_of(chosen, options.weights) if chosen else None,
            about.get("sources", ()),
        )
        # Training measured on held-out sources, if it held some out.
        report = replace(report, measures={**about.get("accuracy", {}), **report.measures})
        return report, {"calibration": vars(calibration), "accuracy": report.measures}

    def answers_to(
        self, network: nn.Module, pictures: Sequence[Any], device: str, on_progress: ReportProgress
    ) -> LabelledScores:
        """Return the network's answers to listed pictures."""
        logits = _logits_of(
            network, self.system, self.data.read(pictures), len(pictures), on_progress, device
        )
        return LabelledScores(
            logits,
            classes=np.array([picture.class_id for picture in pictures]),
            names=[picture.name for picture in pictures],
            read=lambda rows: self.data.read([pictures[row] for row in rows]),
            relevance=relevance(logits) if self.system.subject else None,
        )

    def _made_up(self, network: nn.Module, device: str, on_progress: ReportProgress) -> LabelledScores:
        """Return the network's answers to made-up pictures, which do not show the subject."""
        files = self.system.nothing(_MADE_UP, seed=1)
        logits = _logits_of(network, self.system, iter(files), len(files), on_progress, device)
        none = np.full(len(files), len(self.system.labels))
        return LabelledScores(logits, none, relevance=relevance(logits))


def _logits_of(
    network: nn.Module,
    system: PictureClassifier,
    pictures: Iterator[bytes],
    total: int,
    on_progress: ReportProgress,
    device: str,
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
            on_progress(min(1.0, _ROWS * len(logits) / total))
    return np.concatenate(logits)


def evaluate_parts(
    title: str,
    parts: Mapping[str, LabelledScores],
    labels: Sequence[str],
    accuracy_goals: Mapping[str, float],
    calibration: Calibration | None = None,
    learned_from: Sequence[str] = (),
) -> tuple[Calibration, Report]:
    """Measure all parts with `calibration`, or with one that is chosen on some of them.

    The validation part is there for choosing; of other parts that `accuracy_goals` names, half is used, and
    the other half measured on its own.
    """
    labelled = {name: part for name, part in parts.items() if part.classes[0] < len(labels)}
    chosen = ""
    if calibration is None:
        chosen_on = {}
        for name in accuracy_goals:
            if name == "validation":
                chosen_on[name] = labelled[name]
            elif name in labelled:
                chosen_on[name], labelled[f"{name}, the half not chosen on"] = labelled[name].halves()
        calibration = calibrate(chosen_on, accuracy_goals)
        goals = " and ".join(f"{share:.1%} of the {part}" for part, share in accuracy_goals.items())
        chosen = f"; chosen so that {goals} pictures that reach the threshold are right"
    sections = {
        name: measure_part(f"{name}: {len(part.classes)} pictures", part, labels, calibration, learned_from)
        for name, part in labelled.items()
    }
    for name, part in parts.items():
        if name not in labelled:
            sections[name] = measure_rejections(f"{name}: {len(part.classes)} pictures", part, calibration)
    headline = (
        f"temperature {calibration.temperature:.3f}, threshold {calibration.threshold:.3f}, "
        f"subject_threshold {calibration.subject_threshold:.3f}{chosen}"
    )
    measures = {name: section.measures for name, section in sections.items()}
    return calibration, Report(title, headline, measures, [*sections.values()])


def calibrated(
    system: PictureClassifier,
    data: LabelledPictures,
    folder: Path,
    answers: Callable[[npt.NDArray[Any]], Scores],
    on_progress: ReportProgress,
) -> tuple[Calibration, Report]:
    """Calibrate a network from elsewhere: temperature and threshold from its answers to labelled pictures.

    A network that gives probabilities has no temperature.
    """
    photos = sample_per_class(data.listing(folder, ALL), _CALIBRATED_ON)
    if len(photos) < MIN_CALIBRATED:
        raise BadData(
            f"{folder} has {len(photos)} pictures: {MIN_CALIBRATED} or more tell how sure it may be"
        )
    (pixels,) = decode((photos,), system.input_size, on_progress)
    rows = np.concatenate([answers(pixels.images[at : at + 16]) for at in range(0, len(photos), 16)])
    is_logits = bool(system.logit_outputs)
    if not is_logits:
        rows = np.log(np.maximum(rows, 1e-12))
    part = LabelledScores(rows, pixels.classes, [photo.name for photo in photos])
    chosen = calibrate({GIVEN: part}, {GIVEN: _GOAL}, 0.0 if is_logits else 1.0)
    chosen = with_coverage(replace(chosen, threshold=max(chosen.threshold, _MIN_THRESHOLD)), [part])
    return evaluate_parts(system.name, {GIVEN: part}, system.labels, {}, chosen)
