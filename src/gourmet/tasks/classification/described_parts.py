"""The parts of a system that is only data: those of any classifier of pictures.

The registry asks for them by the names that a system's modules have.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gourmet.contracts import SUBJECT_THRESHOLD_PARAMETER
from gourmet.deploying.target import Calibrated, Check, Deployment, Target
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.calibration import Calibration
from gourmet.tasks.classification.evaluation import ClassifierEvaluation, EvaluatedClassifier, calibrated
from gourmet.tasks.classification.export import ClassifierExport, Exported, onnx_config
from gourmet.tasks.classification.gate import Answers
from gourmet.tasks.classification.given_onnx import GivenOnnx
from gourmet.tasks.classification.labelled_pictures import LabelledPictures
from gourmet.tasks.classification.new_system import next_file, some_pictures
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


def export(system: PictureClassifier) -> DescribedExport:
    return DescribedExport(system)


@dataclass(frozen=True)
class DescribedExport:
    """An ONNX file as it is, other weights as the network that the system names."""

    system: PictureClassifier
    formats: Sequence[str] = ("onnx",)

    def open(
        self,
        weights: Path,
        labelled: Path | None,
        tick: Tick,
        *,
        architecture: str = "",
        network: GivenOnnx | None = None,
    ) -> Deployment:
        """`network` is the open ONNX file of a new system; otherwise it must fit the description."""
        if weights.suffix == ".onnx":
            network = network or next_file(self.system, weights)
            deployment = self._as_given(weights, labelled, tick, network)
        else:
            deployment = self._trained.open(weights, labelled, tick, architecture=architecture)
        if not self.system.multi_label:
            return deployment
        # The probability at which a label applies if several may; the model's config can change it.
        return replace(deployment, calibration={**deployment.calibration, "threshold": 0.5})

    def _as_given(self, weights: Path, labelled: Path | None, tick: Tick, network: GivenOnnx) -> Deployment:
        system, calibration, accuracy = self.system, Calibration(), {}
        if labelled and not system.multi_label:
            measured = self._measured(labelled, network, tick)
            calibration, accuracy = measured.calibration, measured.as_dict()
        tick(1.0)
        facts = {
            "network": {"system": system.name, "architecture": "onnx", "labels": list(system.labels)},
            "training": {"weights_sha256": sha256(weights)},
            "accuracy": accuracy,
            "verified_on": "made-up pictures",
        }
        return Deployment({"onnx": _given(system, weights, network)}, facts, vars(calibration))

    def _measured(self, labelled: Path, network: GivenOnnx, tick: Tick) -> EvaluatedClassifier:
        answers = network.answers(self.system, batched=network.rows != 1)
        return calibrated(self.system, data(self.system), labelled, answers, tick)

    def find(self, checkpoint: str) -> Path:
        return self._trained.find(checkpoint)

    def calibrated(self, version: Path, labelled: Path, tick: Tick) -> Calibrated:
        system = _of_one_label(self.system)
        measured = self._measured(labelled, GivenOnnx(version / "model.onnx", system.layout), tick)
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


def _given(system: PictureClassifier, file: Path, network: GivenOnnx) -> Target:
    """Return the target of an ONNX file, which is compared with its own answers to single pictures."""
    layout, model = system.layout, system.default_model
    batched = network.rows != 1

    def opened(path: Path) -> Answers:
        return GivenOnnx(path, layout).answers(system, batched=batched)

    def build(path: Path) -> dict[str, Any]:
        if network.made is None:
            shutil.copyfile(file, path)
            return {"form": "ONNX, exported elsewhere"}
        path.write_bytes(network.made)
        return {"form": "ONNX, exported elsewhere, made one file that takes any number of pictures"}

    def compare(answers: Answers) -> Sequence[Check]:
        """Check the number of scores, and that each row has the same answer in a batch and alone."""
        labels = len(system.labels)
        count = Check("labels", str(network.labels), str(labels), network.labels == labels)
        alone = network.answers(system, batched=False)
        return [count, *gate.same_answers(alone, answers, some_pictures(system, 16))]

    row = system.tensor(some_pictures(system, 1), system.datatypes[0]).shape[1:]
    types = (str(network.found["datatype"]), str(network.found["scores"]))
    config = onnx_config(system, model, network.input, row, network.output, batched=batched, types=types)
    return Target(model, "model.onnx", build, gate.verify(opened, compare), config, system.labels)
