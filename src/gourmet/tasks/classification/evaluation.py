"""A network asked about every picture of a data set, as it is when served, and its answers measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gourmet.contracts import Classification
from gourmet.errors import GourmetError
from gourmet.pictures.classifier import softmax
from gourmet.runtime.files import write_whole
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification.accuracy import (
    Accuracy,
    Bin,
    Classes,
    Operating,
    Scores,
    accuracy,
    calibration_error,
    choose_threshold,
    coverage_curve,
    fit_temperature,
    operating_at,
    reliability,
)
from gourmet.tasks.furniture import Data, Load, Stage
from gourmet.training.task import Tick

if TYPE_CHECKING:
    from torch import nn

EVALUATION: Final = "evaluation.json"
_ROWS: Final = 64


@dataclass(frozen=True)
class Calibration:
    """What evaluation found out about a network's confidence; as it is, where nobody evaluated it."""

    temperature: float = 1.0
    threshold: float = 0.0


class NotEvaluated(GourmetError):
    """Weights whose temperature and threshold nobody knows."""


def write_evaluation(weights: Path, calibration: Calibration, accuracy: dict[str, Any]) -> None:
    """Note what was measured of `weights`, beside them; `gourmet deploy` ships it with the model."""
    found = {"weights": {"file": weights.name, "sha256": sha256(weights)}, "calibration": vars(calibration)}
    text = json.dumps({**found, "accuracy": accuracy}, indent=2) + "\n"
    write_whole(weights.parent / EVALUATION, text)


def read_evaluation(weights: Path) -> tuple[Calibration, dict[str, Any]]:
    """The calibration and accuracy of `weights`; raises NotEvaluated for weights that were not measured."""
    path = weights.parent / EVALUATION
    if not path.exists():
        raise NotEvaluated(f"{path} does not exist: run `gourmet evaluate` on {weights} first")
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["weights"]["sha256"] != sha256(weights):
        raise NotEvaluated(f"{path} is about other weights than {weights}: run `gourmet evaluate` on these")
    return Calibration(**found["calibration"]), found["accuracy"]


@dataclass(frozen=True)
class Answered:
    """A part of a data set and what the network said about it."""

    logits: Scores
    classes: Classes
    names: Sequence[str]
    picture: Callable[[int], bytes]  # its own bytes, for the report


@dataclass(frozen=True)
class Measured:
    """What is known about one part."""

    answered: Answered
    accuracy: Accuracy
    before: list[Bin]
    after: list[Bin]
    curve: list[Operating]
    at_threshold: Operating
    views: dict[str, float]  # balanced accuracy over subsets of the classes

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.accuracy.as_dict(),
            "calibration_error_before": round(calibration_error(self.before), 4),
            "calibration_error_after": round(calibration_error(self.after), 4),
            "answered": round(self.at_threshold.coverage, 4),
            "right_of_answered": round(self.at_threshold.accuracy, 4),
            **{f"balanced over {name}": round(value, 4) for name, value in self.views.items()},
        }


@dataclass(frozen=True)
class Evaluated:
    """A temperature and a threshold, chosen on pictures held out of training, and every part measured."""

    temperature: float
    threshold: float
    wanted: float  # the share of the answers above the threshold that should be right
    parts: dict[str, Measured]
    labels: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return {name: part.as_dict() for name, part in self.parts.items()}

    def lines(self) -> list[str]:
        parts = [
            f"{name}: balanced {part.accuracy.balanced:.3f} ± {part.accuracy.balanced_margin:.3f}, "
            f"top-1 {part.accuracy.top1:.3f}, top-3 {part.accuracy.top3:.3f}, {part.accuracy.photos} pictures"
            for name, part in self.parts.items()
        ]
        return [*parts, f"temperature {self.temperature:.3f}, threshold {self.threshold:.2f}"]

    def write(self, weights: Path, title: str) -> Path:
        """Leave what deploying needs beside the weights, and a report, whose path is returned."""
        from gourmet.tasks.classification.pages import evaluation_page

        report = weights.with_suffix(".report.html")
        write_whole(report, evaluation_page(title, self))
        write_evaluation(weights, Calibration(self.temperature, self.threshold), self.as_dict())
        return report


@dataclass(frozen=True)
class ClassifierEvaluation:
    """How a classifier is evaluated; fulfils `gourmet.tasks.furniture.Evaluation`."""

    system: Classification
    data: Data
    load: Load
    wanted_accuracy: float = 0.75  # of the answers that are given with certainty
    # Classes over which balanced accuracy is told apart from the whole.
    views: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def evaluate(
        self,
        weights: Path,
        data: Path,
        stage: Stage,
        *,
        limit: int | None,
        device: str,
        architecture: str = "",
    ) -> Evaluated:
        network, _ = self.load(weights, architecture)
        answered = {}
        for part in self.data.parts(data):
            with stage(part) as tick:
                answered[part] = self.answers(network, data, part, limit=limit, device=device, tick=tick)
        return evaluate(answered, self.system.labels, self.wanted_accuracy, self.views)

    def answers(
        self, network: nn.Module, data: Path, part: str, *, limit: int | None, device: str, tick: Tick
    ) -> Answered:
        """The network's logits on the pictures of `part`."""
        pictures = self.data.listing(data, part, limit)
        return Answered(
            logits=ask(network, self.system, self.data.read(pictures), len(pictures), tick, device),
            classes=np.array([picture.class_id for picture in pictures]),
            names=[picture.name for picture in pictures],
            picture=lambda row: next(self.data.read(pictures[row : row + 1])),
        )


def ask(
    network: nn.Module,
    system: Classification,
    pictures: Iterator[bytes],
    total: int,
    tick: Tick,
    device: str = "cpu",
) -> Scores:
    """The network's logits on pictures that went through the contract."""
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
    parts: Mapping[str, Answered], labels: Sequence[str], wanted: float, views: Mapping[str, Sequence[str]]
) -> Evaluated:
    """Choose temperature and threshold on the validation part, then measure all parts with them.

    The threshold is the lowest at which `wanted` of the answers given are right.
    """
    base = parts["validation"]
    temperature = fit_temperature(base.logits, base.classes)
    curve = coverage_curve(softmax(base.logits, temperature), base.classes)
    threshold = choose_threshold(curve, wanted).threshold
    measured = {}
    for name, part in parts.items():
        found = accuracy(part.logits, part.classes, labels)
        probabilities = softmax(part.logits, temperature)
        measured[name] = Measured(
            answered=part,
            accuracy=found,
            before=reliability(softmax(part.logits), part.classes),
            after=reliability(probabilities, part.classes),
            curve=coverage_curve(probabilities, part.classes),
            at_threshold=operating_at(threshold, probabilities, part.classes),
            views={view: found.balanced_over(some) for view, some in views.items()},
        )
    return Evaluated(temperature, threshold, wanted, measured, labels)
