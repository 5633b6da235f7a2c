"""A classifier ready to be deployed: served models, each compared with the network that it is made from."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from torch import nn

from gourmet.contracts import LABELS_PARAMETER, SUBJECT_THRESHOLD_PARAMETER, SYSTEM_PARAMETER
from gourmet.deploying.target import Deployment, Target
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.repository.model_config import LABELS_FILE, ModelConfig, Tensor
from gourmet.runtime.manifest import PARAMETER, REQUIRED, sha256
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.calibration import Calibration, read_evaluation
from gourmet.tasks.classification.gate import Answers, Pixels
from gourmet.tasks.evaluation_file import NotEvaluated
from gourmet.tasks.system_parts import BadData, Data, Load
from gourmet.training.task import Tick

OPSET: Final = 17
_CALIBRATED_ON: Final = 512
_MADE_UP: Final = 64
_FILES: Final = Environment(  # noqa: S701  what is written is Python, Markdown and text protobuf, not HTML
    loader=FileSystemLoader(Path(__file__).with_name("files")),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
)
_FILES.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)
# Torch's, about TorchScript: on CPUs nothing that it would rather have is as fast.
no_advice: Final = partial(warnings.catch_warnings, action="ignore", category=DeprecationWarning)
Normalise = Callable[[Pixels], npt.NDArray[Any]]


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
        # The exporter refuses a name such as a number, which the file can have.
        name = self.output if not self.output.isdigit() else "output"
        export_onnx(source.network, example, path, self.input, name, batched=self.batched)
        model = onnx.load(path)
        if name != self.output:
            for node in model.graph.node:
                node.output[:] = [self.output if output == name else output for output in node.output]
            model.graph.output[0].name = self.output
            onnx.save(model, path)
        onnx.checker.check_model(model, full_check=True)
        shape = ", ".join(map(str, ("N" if self.batched else 1, *example.shape[1:])))
        return {"form": "ONNX", "opset": OPSET, "input": f"float32 [{shape}]"}


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
        """Freezing and fusing are the server's: what they make cannot be saved."""
        example = source.example(2)
        with torch.no_grad(), no_advice():
            traced = torch.jit.trace(source.network, example)  # type: ignore[no-untyped-call]
        traced.save(str(path))
        return {
            "form": "TorchScript, traced",
            "input": f"float32 [N, {', '.join(map(str, example.shape[1:]))}]",
        }


def export_onnx(
    network: nn.Module, example: torch.Tensor, path: Path, name: str, output: str, *, batched: bool = True
) -> None:
    """Write `network` with one input `name` and one `output`, for any batch or for the example's alone.

    A batch of any size needs an example of two rows: with one, the exporter takes it for a constant.
    """
    # The exporter that torch now prefers needs a further package (onnxscript) for the same graph.
    with no_advice():
        torch.onnx.export(
            network,
            (example,),
            str(path),
            dynamo=False,
            input_names=[name],
            output_names=[output],
            dynamic_axes={name: {0: "batch"}, output: {0: "batch"}} if batched else None,
            opset_version=OPSET,
        )


def as_it_is(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Nothing to normalise: what is asked is the network's own input."""
    return values


def eager(network: nn.Module, normalise: Normalise = as_it_is) -> Answers:
    """A network asked with pixels."""

    def answers(pixels: Pixels) -> Scores:
        with torch.inference_mode():
            return network(torch.from_numpy(normalise(pixels))).numpy()  # type: ignore[no-any-return]

    return answers


def open_torchscript(path: Path, normalise: Normalise = as_it_is) -> Answers:
    """`path` opened as it is served: frozen, and fused for this machine."""
    with no_advice():
        network = torch.jit.load(str(path)).eval()  # type: ignore[no-untyped-call]
        return eager(torch.jit.optimize_for_inference(torch.jit.freeze(network)), normalise)


def open_onnx(
    path: Path,
    name: str,
    output: str,
    normalise: Normalise = as_it_is,
    *,
    batched: bool = True,
) -> Answers:
    """`path` opened by ONNX Runtime; asked with pixels, of which `normalise` makes its input.

    A model that is not `batched` is asked about one picture at a time.
    """
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def answers(pixels: Pixels) -> Scores:
        given = normalise(pixels)
        rows = [given] if batched else np.split(given, len(given))
        return np.concatenate([session.run([output], {name: each})[0] for each in rows])

    return answers


def filled_in(name: str, **given: Any) -> str:
    """The file `name` of a new system."""
    return _FILES.get_template(f"{name}.jinja").render(given)


def onnx_config(
    system: PictureClassifier, model: str, name: str, row: Sequence[int], output: str, *, batched: bool
) -> ModelConfig:
    """The config of an ONNX model that a repository does not have yet; `row` is its input's shape for one."""
    one = () if batched else (1,)
    outputs = Tensor(output, "FP32", (*one, len(system.labels)), label_filename=LABELS_FILE)
    return ModelConfig(
        model,
        "onnxruntime",
        16 if batched else 0,
        (Tensor(name, "FP32", (*one, *row), format="NCHW" if batched else ""),),
        (outputs,),
        instances=2,  # they share the CPU's threads
        parameters={
            PARAMETER: REQUIRED,
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
