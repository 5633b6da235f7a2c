"""A picture classification system that was not there before, as the files of its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gourmet.deploying.target import Deployment
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.drawn import made_up
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification.evaluation_file import Calibration
from gourmet.tasks.classification.export import ClassifierExport
from gourmet.tasks.classification.given_onnx import GivenOnnx
from gourmet.tasks.classification.labelled_pictures import LabelledPictures
from gourmet.tasks.classification.targets import Onnx
from gourmet.tasks.classification.torchvision_network import TorchvisionNetwork
from gourmet.training.task import Tick

SAMPLE = "sample.jpg"


@dataclass(frozen=True)
class NewSystem:
    """What is known of it; `architecture` is empty where its network is only a file of ONNX."""

    system: PictureClassifier
    architecture: str

    def files(self, weights: Path | None) -> Mapping[str, str | bytes]:
        """Path within the folder -> content."""
        trained = {
            "network.py": self._network(),
            "train.py": self._piece("Training", "training.task", "PictureTraining", "picture_training"),
            "evaluate.py": self._piece("Evaluation", "tasks.furniture", "ClassifierEvaluation", "evaluation"),
            "export.py": self._export(),
        }
        return {
            "__init__.py": "",
            "contract.py": self._contract(),
            "data.py": self._data(),
            SAMPLE: made_up(),
            "MODEL_CARD.md": self._card(weights),
            **(trained if self.architecture else {}),
        }

    def write(self, folder: Path, weights: Path | None) -> None:
        """Put the files into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files(weights).items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def at(self, folder: Path) -> NewSystem:
        """The same with its sample in `folder`."""
        return replace(self, system=replace(self.system, sample_file=folder / SAMPLE))

    def _contract(self) -> str:
        system, usual = self.system, PictureClassifier("", "", "", "", (), Path())
        labels = "".join(f"        {json.dumps(label, ensure_ascii=False)},\n" for label in system.labels)
        own = "".join(
            f"    {name}={getattr(system, name)!r},\n"
            for name in ("input_size", "mean", "std", "probability_outputs", "logit_outputs")
            if getattr(system, name) != getattr(usual, name)
        ).replace("'", '"')
        return f'''"""What all that touches {system.name} agrees on: labels, pixels in, probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gourmet.pictures.classifier import PictureClassifier

SYSTEM: Final = PictureClassifier(
    name="{system.name}",
    title={json.dumps(system.title, ensure_ascii=False)},
    # Which served model answers: this variable decides, and nothing else.
    model_variable="{system.model_variable}",
    default_model="{system.default_model}",
    labels=(
{labels}    ),
    # A made-up picture; a real one says more in the server's log. Put yours in its place.
    sample_file=Path(__file__).with_name("{SAMPLE}"),
    datatypes=("FP32",),
{own})
'''

    def _data(self) -> str:
        return f'''"""Labelled pictures: a folder or zip with a folder for each label."""

from typing import Final

from gourmet.systems.{self.system.name}.contract import SYSTEM
from gourmet.tasks.classification.labelled_pictures import LabelledPictures

DATA: Final = LabelledPictures(SYSTEM.labels)
'''

    def _network(self) -> str:
        return f'''"""The network, which is torchvision's."""

from typing import Final

from gourmet.systems.{self.system.name}.contract import SYSTEM
from gourmet.tasks.classification.torchvision_network import TorchvisionNetwork

NETWORK: Final = TorchvisionNetwork(SYSTEM, "{self.architecture}")
'''

    def _piece(self, protocol: str, room: str, kind: str, module: str) -> str:
        name = self.system.name
        words = {"Training": "How it is trained", "Evaluation": "How it is evaluated"}[protocol]
        imports = sorted(
            [
                f"from gourmet.systems.{name}.contract import SYSTEM",
                f"from gourmet.systems.{name}.data import DATA",
                f"from gourmet.systems.{name}.network import NETWORK",
                f"from gourmet.tasks.classification.{module} import {kind}",
                f"from gourmet.{room} import {protocol}",
            ]
        )
        return f'''"""{words}: as any classifier of pictures is."""

from typing import Final

{chr(10).join(imports)}

{protocol.upper()}: Final[{protocol}] = {kind}(SYSTEM, DATA, NETWORK)
'''

    def _export(self) -> str:
        name = self.system.name
        return f'''"""The network as the model that is served."""

from typing import Final

from gourmet.deploying.target import Export
from gourmet.systems.{name}.contract import SYSTEM
from gourmet.systems.{name}.data import DATA
from gourmet.systems.{name}.network import NETWORK
from gourmet.tasks.classification.export import ClassifierExport
from gourmet.tasks.classification.targets import Onnx

MODELS: Final = {{"onnx": Onnx("{self.system.default_model}")}}
EXPORT: Final[Export] = ClassifierExport(SYSTEM, DATA, NETWORK, MODELS)
'''

    def _card(self, weights: Path | None) -> str:
        system = self.system
        origin = f"`{weights.name}`" if weights else "not trained yet"
        labels = "".join(f"- {label}\n" for label in system.labels)
        return f"""# {system.title}

Tells which of {len(system.labels)} labels a picture shows.

- network: {self.architecture or "an ONNX file exported elsewhere"}
- pictures: {system.input_size}×{system.input_size} pixels
- weights: {origin}
- trained on: say on what, under which licence, and what it does not show
- accuracy: `gourmet evaluate {system.name} --data …` measures it; until then nobody knows it
- meant for: say for what, and for what not

Labels:

{labels}"""

    def test(self) -> str:
        """The module of its test."""
        system = self.system
        shape = (1, 3, system.input_size, system.input_size)
        labels = ", ".join(json.dumps(label, ensure_ascii=False) for label in system.labels)
        return f'''"""The system {system.name}: what its network takes, and its labels."""

from gourmet.contracts import ModelInfo
from gourmet.systems import registry

SYSTEM = registry.classification("{system.name}")


def test_the_sample_becomes_what_the_network_takes() -> None:
    assert SYSTEM.encode(SYSTEM.sample(), "FP32").shape == {shape}


def test_it_answers_in_its_labels() -> None:
    model = ModelInfo(SYSTEM.default_model, (), ())
    assert SYSTEM.labels_of(model) == ({labels})
'''


def deployment_of(described: NewSystem, weights: Path, data: Path | None, tick: Tick) -> Deployment:
    """Its weights, ready to be deployed as `onnx`."""
    system = described.system
    if described.architecture:
        data_of_it = LabelledPictures(system.labels)
        load = TorchvisionNetwork(system, described.architecture)
        export = ClassifierExport(system, data_of_it, load, {"onnx": Onnx(system.default_model)})
        return export.open(weights, data, tick)
    tick(1.0)
    facts = {
        "network": {"system": system.name, "architecture": "onnx", "labels": list(system.labels)},
        "training": {"weights_sha256": sha256(weights)},
        "verified_on": "made-up pictures",
    }
    return Deployment({"onnx": GivenOnnx(system, weights)}, facts, vars(Calibration()))
