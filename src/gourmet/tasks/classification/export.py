"""A classifier ready to be deployed: served models, each compared with the network that it is made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from torch import nn

from gourmet.client.model_config import Config
from gourmet.contracts import LABELS_PARAMETER, SUBJECT_THRESHOLD_PARAMETER, SYSTEM_PARAMETER
from gourmet.deploying.target import Deployment, Target
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.repository.model_config import model_config, tensor
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.calibration import Calibration, read_evaluation
from gourmet.tasks.classification.formats import (
    eager,
    open_onnx,
    open_torchscript,
    write_onnx,
    write_traced,
)
from gourmet.tasks.classification.gate import Answers, Pixels
from gourmet.tasks.evaluation_file import NotEvaluated
from gourmet.tasks.system_parts import BadData, Data, Load
from gourmet.training.task import Tick

_CALIBRATED_ON: Final = 512
_MADE_UP: Final = 64
_FILES: Final = Environment(  # noqa: S701  what is written is Python, Markdown and text protobuf, not HTML
    loader=FileSystemLoader(Path(__file__).with_name("files")),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
)
_FILES.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Source:
    """What the models of a system are made of, and compared with."""

    system: PictureClassifier
    network: nn.Module
    calibration: Calibration
    to_calibrate: Pixels  # for quantization, from the training part
    held_out: Pixels  # to pass the gate with
    held_out_classes: npt.NDArray[np.int64] | None  # None where nobody has labelled them

    @property
    def eager(self) -> Answers:
        """The network as it was trained, asked with pixels."""
        return eager(self.network, self.system.normalise)

    def example(self, rows: int) -> torch.Tensor:
        """A tensor to trace the network with."""
        blank = np.zeros((rows, *self.held_out.shape[1:]), np.uint8)
        return torch.rand(self.system.normalise(blank).shape)


Formats = Mapping[str, Callable[[Source], Target]]


@dataclass(frozen=True)
class Onnx:
    """The format of most classifiers: an ONNX file that takes the network's tensor and gives its logits."""

    model: str
    input: str = "input"
    output: str = "output"
    batched: bool = True

    def __call__(self, source: Source) -> Target:
        def opened(path: Path) -> Answers:
            normalise = source.system.normalise
            return open_onnx(path, self.input, self.output, normalise, batched=self.batched)

        row = list(source.example(1).shape[1:])
        config = onnx_config(source.system, self.model, self.input, row, self.output, batched=self.batched)
        verify = gate.verify(opened, partial(gate.same_answers, source.eager, photos=source.held_out))
        labels = source.system.labels
        return Target(self.model, "model.onnx", partial(self._write, source), verify, config, labels)

    def _write(self, source: Source, path: Path) -> dict[str, Any]:
        example = source.example(2 if self.batched else 1)
        facts = write_onnx(source.network, example, path, self.input, self.output, batched=self.batched)
        shape = ", ".join(map(str, ("N" if self.batched else 1, *example.shape[1:])))
        return {**facts, "input": f"float32 [{shape}]"}


@dataclass(frozen=True)
class TorchScript:
    """A traced network, for a Python model that opens it."""

    model: str

    def __call__(self, source: Source) -> Target:
        def opened(path: Path) -> Answers:
            return open_torchscript(path, source.system.normalise)

        verify = gate.verify(opened, partial(gate.same_answers, source.eager, photos=source.held_out))
        return Target(self.model, "model.pt", partial(self._write, source), verify)

    def _write(self, source: Source, path: Path) -> dict[str, Any]:
        example = source.example(2)
        shape = ", ".join(map(str, example.shape[1:]))
        return {**write_traced(source.network, example, path), "input": f"float32 [N, {shape}]"}


def filled_in(name: str, **given: Any) -> str:
    """The file `name` of a new system."""
    return _FILES.get_template(f"{name}.jinja").render(given)


def onnx_config(
    system: PictureClassifier, model: str, name: str, row: Sequence[int], output: str, *, batched: bool
) -> Config:
    """The config of an ONNX model that a repository does not have yet; `row` is its input's shape for one."""
    one = () if batched else (1,)
    return model_config(
        model,
        "onnxruntime",
        16 if batched else 0,
        tensor(name, "FP32", (*one, *row), is_picture=batched),
        tensor(output, "FP32", (*one, len(system.labels)), has_labels=True),
        instances=2,  # they share the CPU's threads
        parameters={
            SYSTEM_PARAMETER: system.name,
            LABELS_PARAMETER: json.dumps(system.labels, ensure_ascii=False),
        },
    )


@dataclass(frozen=True)
class ClassifierExport:
    """How a classifier is exported; fulfils `gourmet.deploying.target.Export`."""

    system: PictureClassifier
    data: Data
    load: Load
    models: Formats
    preprocessing: Mapping[str, Any] = field(default_factory=dict)  # for people who read the manifest
    calibrates: bool = False  # one of the formats is quantized

    @property
    def formats(self) -> Sequence[str]:
        return tuple(self.models)

    def open(self, weights: Path, data: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        """Weights that others trained need no evaluation, and no labelled pictures either."""
        network, about = self.load(weights, architecture)
        foreign = bool(about.get("foreign"))
        try:
            calibration, accuracy = read_evaluation(weights)
        except NotEvaluated:
            if not foreign:
                raise
            calibration, accuracy = Calibration(), {}
        if data is None and not foreign:
            raise BadData("no labelled pictures to verify with: name them with --data")
        source = Source(self.system, network, calibration, *self._pictures(data, tick))
        return Deployment(
            targets={name: model(source) for name, model in self.models.items()},
            facts={
                "network": {key: about[key] for key in ("system", "architecture", "labels")},
                "training": {"weights_sha256": sha256(weights), "epoch": about.get("epoch")},
                "accuracy": accuracy,
                "verified_on": "made-up pictures" if data is None else "labelled pictures held out",
                "preprocessing": {
                    "size": self.system.input_size,
                    "mean": self.system.mean,
                    "std": self.system.std,
                    "code": type(self.system).__module__,
                    **self.preprocessing,
                },
            },
            calibration={
                name: value
                for name, value in vars(calibration).items()
                if name != SUBJECT_THRESHOLD_PARAMETER or self.system.subject
            },
        )

    def _pictures(self, data: Path | None, tick: Tick) -> tuple[Pixels, Pixels, npt.NDArray[np.int64] | None]:
        """Pictures to calibrate with, others to verify with, and the classes of these."""
        if data is None:
            made_up = np.stack([self.system.pixels(each) for each in self.system.examples(_MADE_UP, 0)])
            return made_up, made_up, None
        held = self.data.listing(data, "validation")
        train = self.data.listing(data, "train", _CALIBRATED_ON) if self.calibrates else ()
        examples, rows = [*train, *held], []
        for example, picture in zip(examples, self.data.read(examples), strict=True):
            try:
                rows.append(self.system.pixels(picture))
            except PictureError as exc:
                raise BadData(f"{example.name}: {exc}") from exc
            tick(len(rows) / len(examples))
        images = np.stack(rows)
        order = np.random.default_rng(0).permutation(len(held))  # the first rows are of all classes
        classes = np.array([example.class_id for example in held], dtype=np.int64)
        return images[: len(train)], images[len(train) :][order], classes[order]
