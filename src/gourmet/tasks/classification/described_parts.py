"""The parts of a system that is only data: those of any classifier of pictures.

The registry asks for them by the names that a system's modules have.
"""

from __future__ import annotations

from gourmet.deploying.target import Export
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.tasks.classification.evaluation import ClassifierEvaluation
from gourmet.tasks.classification.export import ClassifierExport, Exported
from gourmet.tasks.classification.labelled_pictures import LabelledPictures
from gourmet.tasks.classification.picture_training import PictureTraining
from gourmet.tasks.classification.torchvision_network import TorchvisionNetwork
from gourmet.tasks.system_parts import Evaluation
from gourmet.training.task import Training


def data(system: PictureClassifier) -> LabelledPictures:
    return LabelledPictures(system.labels)


def train(system: PictureClassifier) -> Training:
    return PictureTraining(system, data(system), _network(system))


def evaluate(system: PictureClassifier) -> Evaluation:
    return ClassifierEvaluation(system, data(system), _network(system))


def export(system: PictureClassifier) -> Export:
    models = {"onnx": Exported(system.default_model)}
    return ClassifierExport(system, data(system), _network(system), models)


def _network(system: PictureClassifier) -> TorchvisionNetwork:
    if not system.architecture:
        raise UsageError(
            f"the system {system.name!r} names no architecture, as its model was given as an ONNX file: "
            "there is no network to train, evaluate or export"
        )
    return TorchvisionNetwork(system, system.architecture)
