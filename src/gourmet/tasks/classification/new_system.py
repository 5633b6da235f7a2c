"""A picture classification system that was not there before: the files of its folder, and its first model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gourmet.deploying.target import Deployment
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.drawn import made_up
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification.evaluation import Calibration
from gourmet.tasks.classification.export import ClassifierExport
from gourmet.tasks.classification.files import filled_in
from gourmet.tasks.classification.given_onnx import given_onnx
from gourmet.tasks.classification.labelled_pictures import LabelledPictures
from gourmet.tasks.classification.targets import Onnx
from gourmet.tasks.classification.torchvision_network import TorchvisionNetwork
from gourmet.training.task import Tick

_ALWAYS: Final = ("contract.py", "data.py", "MODEL_CARD.md")
# Without a network of torch, as with a file of ONNX, there is nothing to train or export.
_OF_A_NETWORK: Final = ("network.py", "train.py", "evaluate.py", "export.py")


def write_system(system: PictureClassifier, architecture: str, weights: Path | None) -> None:
    """Write its folder, which is the one its sample is to lie in; an ONNX file has no `architecture`."""
    folder = system.sample_file.parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    system.sample_file.write_bytes(made_up())
    for name in (*_ALWAYS, *(_OF_A_NETWORK if architecture else ())):
        text = filled_in(name, system=system, architecture=architecture, weights=weights)
        (folder / name).write_text(text, encoding="utf-8")


def deployment_of(
    system: PictureClassifier, architecture: str, weights: Path, data: Path | None, tick: Tick
) -> Deployment:
    """Its weights, ready to be deployed as `onnx`."""
    if architecture:
        network = TorchvisionNetwork(system, architecture)
        formats = {"onnx": Onnx(system.default_model)}
        return ClassifierExport(system, LabelledPictures(system.labels), network, formats).open(
            weights, data, tick
        )
    tick(1.0)
    facts = {
        "network": {"system": system.name, "architecture": "onnx", "labels": list(system.labels)},
        "training": {"weights_sha256": sha256(weights)},
        "verified_on": "made-up pictures",
    }
    return Deployment({"onnx": given_onnx(system, weights)}, facts, vars(Calibration()))
