"""The parts of a system that is only data: those of any classifier of pictures.

The registry asks for them by the names that a system's modules have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gourmet.contracts import SUBJECT_THRESHOLD_PARAMETER
from gourmet.deploying.target import Calibrated, Deployment, Export
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.tasks.classification.evaluation import ClassifierEvaluation
from gourmet.tasks.classification.export import ClassifierExport, Exported
from gourmet.tasks.classification.labelled_pictures import LabelledPictures
from gourmet.tasks.classification.picture_training import PictureTraining
from gourmet.tasks.classification.torchvision_network import TorchvisionNetwork
from gourmet.tasks.system_parts import Evaluation
from gourmet.training.task import Tick, Training


def data(system: PictureClassifier) -> LabelledPictures:
    return LabelledPictures(system.labels)


def train(system: PictureClassifier) -> Training:
    return PictureTraining(system, data(system), _network(_of_one_label(system)))


def evaluate(system: PictureClassifier) -> Evaluation:
    return ClassifierEvaluation(system, data(system), _network(_of_one_label(system)))


def export(system: PictureClassifier) -> Export:
    return _DescribedExport(system)


@dataclass(frozen=True)
class _DescribedExport:
    """An ONNX file as it is, other weights as the network that the system names."""

    system: PictureClassifier
    formats: Sequence[str] = ("onnx",)

    def open(self, weights: Path, labelled: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        if weights.suffix == ".onnx":
            from gourmet.tasks.classification.new_system import next_version  # which asks for these parts

            return next_version(self.system, weights, labelled, tick)
        return self._trained.open(weights, labelled, tick, architecture=architecture)

    def find(self, checkpoint: str) -> Path:
        return self._trained.find(checkpoint)

    def calibrated(self, version: Path, labelled: Path, tick: Tick) -> Calibrated:
        from gourmet.tasks.classification.given_onnx import GivenOnnx
        from gourmet.tasks.classification.new_system import measured_on

        system = _of_one_label(self.system)
        measured = measured_on(system, labelled, GivenOnnx(version / "model.onnx", system.layout), tick)
        chosen = dict(vars(measured.calibration))
        if not system.subject:
            chosen.pop(SUBJECT_THRESHOLD_PARAMETER)
        return Calibrated(chosen, {"accuracy": measured.as_dict()}, measured.lines())

    @property
    def _trained(self) -> ClassifierExport:
        models = {"onnx": Exported(self.system.default_model)}
        return ClassifierExport(self.system, data(self.system), _network(self.system), models)


def _of_one_label(system: PictureClassifier) -> PictureClassifier:
    if system.multi_label:
        raise UsageError(
            f"pictures of {system.name!r} may have several labels, which nothing here trains or measures"
        )
    return system


def _network(system: PictureClassifier) -> TorchvisionNetwork:
    if not system.architecture:
        raise UsageError(
            f"the system {system.name!r} names no architecture, as its model was given as an ONNX file: "
            f"there is no network to train or evaluate; the next version is an ONNX file, for "
            f"`gourmet deploy {system.name} --weights FILE`"
        )
    return TorchvisionNetwork(system, system.architecture)
