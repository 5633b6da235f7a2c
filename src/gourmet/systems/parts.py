"""What a system exports: this page is all of it.

A system is a folder with a contract.py. Each verb needs some more files of it, imports only those, and finds
in each an object that fulfils a protocol. `SystemParts` below lists files, objects and protocols; what a
protocol asks for is written where it is defined. This is the smallest system that can be trained, measured,
deployed and checked:

    # src/gourmet/systems/coins/contract.py: required; imports neither torch nor anything that does
    from pathlib import Path
    from gourmet.pictures.classifier import PictureClassifier

    SYSTEM = PictureClassifier(
        name="coins",
        title="Coins",
        model_variable="COINS_MODEL_NAME",
        default_model="coins_onnx",
        labels=("cent", "euro"),
        sample_file=Path(__file__).with_name("sample.jpg"),
    )

    # src/gourmet/systems/coins/data.py: for `gourmet check` with --data
    from gourmet.evaluation.labelled_pictures import LabelledPictures
    from gourmet.systems.coins.contract import SYSTEM

    DATA = LabelledPictures(SYSTEM.labels)

    # src/gourmet/systems/coins/train.py: for `gourmet train`
    from gourmet.export.torchvision_network import TorchvisionNetwork
    from gourmet.learning.picture_training import PictureTraining
    from gourmet.systems.coins.contract import SYSTEM
    from gourmet.systems.coins.data import DATA

    NETWORK = TorchvisionNetwork(SYSTEM, "torchvision:resnet18")
    TRAINING = PictureTraining(SYSTEM, DATA, NETWORK)

    # src/gourmet/systems/coins/evaluate.py: for `gourmet evaluate`
    from gourmet.evaluation.picture_evaluation import ClassifierEvaluation
    from gourmet.systems.coins.train import DATA, NETWORK, SYSTEM

    EVALUATION = ClassifierEvaluation(SYSTEM, DATA, NETWORK)

    # src/gourmet/systems/coins/export.py: for `gourmet deploy`
    from gourmet.export.picture_export import ClassifierExport, Exported
    from gourmet.systems.coins.train import DATA, NETWORK, SYSTEM

    EXPORT = ClassifierExport(SYSTEM, DATA, NETWORK, {"onnx": Exported("coins_onnx")})
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from gourmet.systems.registry import load_part

if TYPE_CHECKING:  # a served model asks for its `serving` alone, and has few packages
    from gourmet.bench.inputs import ClientLoop
    from gourmet.contracts import Generation, System
    from gourmet.evaluation.system_parts import Data, Evaluation, TextData
    from gourmet.generation.answers import GenerationServing
    from gourmet.pictures.classifier import PictureClassifier
    from gourmet.repository.gate import Export
    from gourmet.training.task import Training

Fulfils = TypeVar("Fulfils", covariant=True)


class Part(Generic[Fulfils]):
    """An object in a file of a system's folder, imported when it is asked for."""

    def __init__(self, file: str, name: str, protocol: str) -> None:
        self.module, self.name, self.protocol = file.removesuffix(".py"), name, protocol

    def __get__(self, parts: SystemParts, owner: type[SystemParts]) -> Fulfils:
        module, _, protocol = self.protocol.rpartition(".")
        part: Fulfils = load_part(
            parts.system, self.module, self.name, getattr(import_module(module), protocol)
        )
        return part


class SystemParts:
    """The parts of one system. A verb hands it down, so that no room imports a system."""

    contract: Part[System] = Part("contract.py", "SYSTEM", "gourmet.contracts.System")
    classifier: Part[PictureClassifier] = Part(
        "contract.py", "SYSTEM", "gourmet.pictures.classifier.PictureClassifier"
    )
    generator: Part[Generation] = Part("contract.py", "SYSTEM", "gourmet.contracts.Generation")
    # Labelled pictures, for classifiers; texts with their right answers, for systems that generate text.
    data: Part[Data] = Part("data.py", "DATA", "gourmet.evaluation.system_parts.Data")
    text_data: Part[TextData] = Part("data.py", "DATA", "gourmet.evaluation.system_parts.TextData")
    training: Part[Training] = Part("train.py", "TRAINING", "gourmet.training.task.Training")
    evaluation: Part[Evaluation] = Part(
        "evaluate.py", "EVALUATION", "gourmet.evaluation.system_parts.Evaluation"
    )
    export: Part[Export] = Part("export.py", "EXPORT", "gourmet.repository.gate.Export")
    # Only for text that our own loop decodes word by word: the network within Triton, the loop in a client.
    serving: Part[GenerationServing] = Part(
        "serving.py", "SERVING", "gourmet.generation.answers.GenerationServing"
    )
    client_loop: Part[ClientLoop] = Part("client_loop.py", "CLIENT_LOOP", "gourmet.bench.inputs.ClientLoop")

    def __init__(self, system: str) -> None:
        self.system = system
