"""A classifier ready to be deployed: served models, each compared with the network that it is made from."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.repository.config_file import model_config, tensor
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification import gate, rehearsal
from gourmet.tasks.classification.calibration import Calibration, read_evaluation
from gourmet.tasks.classification.comparison import Candidate
from gourmet.tasks.classification.evaluation import calibrated
from gourmet.tasks.classification.formats import Format, eager, format_of
from gourmet.tasks.classification.gate import Answers, Pixels
from gourmet.tasks.classification.labelled_pictures import LabelledPictures
from gourmet.tasks.classification.last_layer import LastLayer
from gourmet.tasks.evaluation_file import NotEvaluated
from gourmet.tasks.onnx_metadata import described
from gourmet.tasks.system_parts import BadData, Data, EmptyPart, Load
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


@dataclass(frozen=True, eq=False)
class Source:
    """The network that a system's models are made of and compared with. Two sources are never equal."""

    system: PictureClassifier
    network: nn.Module
    calibration: Calibration
    to_calibrate: Pixels  # for quantization, from the training part
    held_out: Pixels  # to pass the gate with
    held_out_classes: npt.NDArray[np.int64] | None  # of the first of them; None where nobody labelled any
    weights: Path  # whose network it is
    candidate: Candidate | None = None  # by which it is compared with what is served

    @property
    def eager(self) -> Answers:
        """The network as it was trained, asked with pixels."""
        return self.with_pixels(eager(self.network))

    def with_pixels(self, model: Answers, *, half: bool = False) -> Answers:
        """Return a function that normalises pixels and asks `model` about them, in half precision or not."""
        kind = np.float16 if half else np.float32
        return lambda pixels: model(self.system.normalise(pixels).astype(kind, copy=False))


Formats = Mapping[str, Callable[[Source], Target]]


@dataclass(frozen=True)
class Exported:
    """A served model that answers as the network: ONNX, or TorchScript for a model that opens it."""

    model: str
    input: str = "input"
    output: str = "output"
    batched: bool = True
    form: str = "onnx"
    half: bool = False
    max_difference: float = gate.MAX_LOGIT_DIFFERENCE

    @property
    def format(self) -> Format:
        return format_of(self.form, self.input, self.output, batched=self.batched)

    def __call__(self, source: Source) -> Target:
        system, form = source.system, self.format
        rows = 2 if self.batched else 1
        blank = np.zeros((rows, *source.held_out.shape[1:]), np.uint8)
        example, network = torch.rand(system.normalise(blank).shape), source.network
        if self.half:
            example, network = example.half(), copy.deepcopy(network).half()
        row, config = example.shape[1:], None
        if self.form == "onnx":
            config = onnx_config(system, self.model, self.input, row, self.output, batched=self.batched)

        def build(path: Path) -> dict[str, Any]:
            if (
                self.form != "onnx" and source.candidate
            ):  # beside which the next run of `gourmet learn-more` looks for it
                rehearsal.take_over(source.weights, path)
            shape = ", ".join(map(str, ("N" if self.batched else 1, *row)))
            kind = "float16" if self.half else "float32"
            return {**form.write(network, example, path), "input": f"{kind} [{shape}]"}

        def opened(path: Path) -> Answers:
            return source.with_pixels(form.open(path), half=self.half)

        compare = partial(
            gate.same_answers, source.eager, photos=source.held_out, allowed=self.max_difference
        )
        return Target(
            self.model,
            form.file,
            build,
            gate.verify(opened, compare),
            config,
            system.labels if config else (),
            compare=source.candidate.beside(form.file, opened) if source.candidate else None,
        )


def filled_in(name: str, **values: Any) -> str:
    """Return the file `name` of a new system, filled in."""
    return _FILES.get_template(f"{name}.jinja").render(values)


def onnx_config(
    system: PictureClassifier,
    model: str,
    name: str,
    row: Sequence[int],
    output: str,
    *,
    batched: bool,
    types: tuple[str, str] = ("FP32", "FP32"),
) -> Config:
    """Return the config of a new ONNX model; `row` is the shape of one row of its input."""
    leading = () if batched else (1,)
    return model_config(
        model,
        "onnxruntime",
        16 if batched else 0,
        tensor(name, types[0], (*leading, *row), layout=(system.layout or "NCHW") if batched else ""),
        tensor(output, types[1], (*leading, len(system.labels)), has_labels=True),
        instances=2,  # they share the CPU's threads
        parameters={
            SYSTEM_PARAMETER: system.name,
            LABELS_PARAMETER: json.dumps(system.labels, ensure_ascii=False),
        },
    )


@dataclass(frozen=True)
class ClassifierExport:
    """Export a classifier; fulfils `gourmet.deploying.target.Export`."""

    system: PictureClassifier
    data: Data
    load: Load
    models: Formats
    preprocessing: Mapping[str, Any] = field(default_factory=dict)  # for people who read the manifest
    license: str = ""  # of the weights, for the metadata of ONNX files
    calibrates: bool = False  # one of the formats is quantized
    bundled: Callable[[], Path] | None = None  # labelled pictures that are at hand everywhere

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
            if data and isinstance(self.data, LabelledPictures) and not self.system.multi_label:
                answers = eager(network)
                measured = calibrated(
                    self.system, self.data, data, lambda rows: answers(self.system.normalise(rows)), tick
                )
                calibration, accuracy = measured.calibration, measured.as_dict()
        if data is None and not foreign:
            raise BadData("no labelled pictures to verify with: name them with --data")
        source = Source(self.system, network, calibration, *self._pictures(data, tick), weights)
        candidate = Candidate(
            self.system,
            self.data,
            self.bundled() if self.bundled else data,
            source.eager,
            calibration,
            sha256(weights),
            (last := LastLayer(network)).layer,
            last.before_it,
            rehearsal.read(weights, last.before_it, last.layer),
        )
        source = replace(source, candidate=candidate)
        preprocessing = {
            "size": self.system.input_size,
            "mean": self.system.mean,
            "std": self.system.std,
            "code": type(self.system).__module__,
            **self.preprocessing,
        }
        with_metadata = partial(
            described,
            system=self.system.name,
            license=self.license,
            labels=self.system.labels,
            preprocessing=preprocessing,
        )
        return Deployment(
            targets={name: with_metadata(model(source)) for name, model in self.models.items()},
            facts={
                "network": {key: about[key] for key in ("system", "architecture", "labels")},
                "training": {"weights_sha256": sha256(weights), "epoch": about.get("epoch")},
                "accuracy": accuracy,
                "verified_on": "made-up pictures" if data is None else "labelled pictures held out",
                "preprocessing": preprocessing,
            },
            calibration={
                name: value
                for name, value in vars(calibration).items()
                if name != SUBJECT_THRESHOLD_PARAMETER or self.system.subject
            },
        )

    def find(self, checkpoint: str) -> Path:
        raise UsageError(f"{self.system.name} knows no published checkpoints: give --weights, a file")

    def _pictures(self, data: Path | None, tick: Tick) -> tuple[Pixels, Pixels, npt.NDArray[np.int64] | None]:
        """Return pictures to calibrate with, other pictures to verify with, and the classes of the latter."""
        if data is None:
            made_up = np.stack(self._made_up(_MADE_UP, 0))
            return made_up, made_up, None
        try:
            held = self.data.listing(data, "validation")
        except EmptyPart:  # of so few pictures that none is in it
            held = ()
        train = self.data.listing(data, "train", _CALIBRATED_ON) if self.calibrates else ()
        examples, rows = [*train, *held], []
        for example, picture in zip(examples, self.data.read(examples), strict=True):
            try:
                rows.append(self.system.pixels(picture))
            except PictureError as exc:
                raise BadData(f"{example.name}: {exc}") from exc
            tick(len(rows) / len(examples))
        order = np.random.default_rng(0).permutation(len(held))  # the first rows are of all classes
        classes = np.array([example.class_id for example in held], dtype=np.int64)
        # Few photos tell little of what values occur and how a model answers: made-up ones tell the rest.
        to_calibrate = [*rows[: len(train)], *(self._made_up(_MADE_UP - len(train), 1) if train else ())]
        later = rows[len(train) :]
        to_verify = [*(later[row] for row in order), *self._made_up(_MADE_UP - len(held), 0)]
        return np.array(to_calibrate), np.array(to_verify), classes[order]

    def _made_up(self, count: int, seed: int) -> list[Pixels]:
        return [self.system.pixels(picture) for picture in self.system.examples(max(0, count), seed)]
