"""A classifier ready to be deployed: served models, each compared with the network that it is made from."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from torch import nn

from gourmet.contracts import LABELS_PARAMETER, SUBJECT_THRESHOLD_PARAMETER, SYSTEM_PARAMETER
from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation import same_answers
from gourmet.evaluation.accuracy import Scores
from gourmet.evaluation.calibration import Calibration, NotEvaluated, read_evaluation
from gourmet.evaluation.labelled_pictures import LabelledPictures
from gourmet.evaluation.picture_comparison import Candidate
from gourmet.evaluation.picture_evaluation import calibrated
from gourmet.evaluation.rehearsal import copy_rehearsal, read_rehearsal
from gourmet.evaluation.same_answers import Answers, Pixels
from gourmet.evaluation.system_parts import BadData, Data, EmptyPart, Load
from gourmet.export.onnx_metadata import described
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.progress import ReportProgress
from gourmet.repository.config_file import LABELS_FILE, model_config, tensor
from gourmet.repository.gate import Deployment, ModelFile, Target
from gourmet.served.manifest import sha256
from gourmet.training.last_layer import LastLayer
from gourmet.triton_client.model_config import Config

_CALIBRATED_ON: Final = 512
_MADE_UP: Final = 64
OPSET: Final = 17
ONNX: Final = "onnx"
# Torch's, about TorchScript: on CPUs nothing that it would rather have is as fast.
_no_advice: Final = partial(warnings.catch_warnings, action="ignore", category=DeprecationWarning)


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
    # Makes the network of the file, whose further outputs are called `more`. A config does not name them.
    more: Sequence[str] = ()
    graph: Callable[[nn.Module], nn.Module] = lambda network: network
    batched: bool = True
    form: str = ONNX  # or ts-script, or ts-trace
    half: bool = False
    max_difference: float = same_answers.MAX_LOGIT_DIFFERENCE

    @property
    def file(self) -> str:
        return "model.onnx" if self.form == ONNX else "model.pt"

    def __call__(self, source: Source) -> Target:
        system, rows = source.system, 2 if self.batched else 1
        blank = np.zeros((rows, *source.held_out.shape[1:]), np.uint8)
        example, network = torch.rand(system.normalise(blank).shape), source.network
        if self.half:
            example, network = example.half(), copy.deepcopy(network).half()
        row, config = example.shape[1:], None
        if self.form == ONNX:
            config = onnx_config(system, self.model, self.input, row, self.output, batched=self.batched)

        def write(path: Path) -> dict[str, Any]:
            # The next run of `gourmet learn-more` looks for the set beside the default model.
            if source.candidate and self.model == system.default_model:
                copy_rehearsal(source.weights, path)
            shape = ", ".join(map(str, ("N" if self.batched else 1, *row)))
            kind = "float16" if self.half else "float32"
            return {**self._write(network, example, path), "input": f"{kind} [{shape}]"}

        def opened(path: Path) -> Answers:
            return source.with_pixels(self._open(path), half=self.half)

        compare = partial(
            same_answers.same_answers, source.eager, photos=source.held_out, allowed=self.max_difference
        )
        return Target(
            self.model,
            [ModelFile(self.file, write, same_answers.verify(opened, compare))],
            config,
            system.labels if config else (),
            compare=source.candidate.comparing(self.file, opened) if source.candidate else None,
        )

    def _write(self, network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
        if self.form == ONNX:
            graph = self.graph(network)
            more = self.more if graph is not network else ()
            return write_onnx(graph, example, path, self.input, self.output, *more, batched=self.batched)
        return _write_torchscript(network, example if self.form == "ts-trace" else None, path)

    def _open(self, path: Path) -> Answers:
        if self.form == ONNX:
            return open_onnx(path, self.input, self.output, batched=self.batched)
        return open_torchscript(path)


def write_onnx(
    network: nn.Module,
    example: torch.Tensor,
    path: Path,
    name: str,
    output: str,
    *more: str,
    batched: bool = True,
) -> dict[str, Any]:
    """Write and check an ONNX file with one input and a network's outputs; return its form for a manifest.

    A network that returns several tensors has further outputs, called `more`.

    It is for any batch, or for the example's alone. A batch of any size needs an example of two rows: with
    one, the exporter takes it for a constant.
    """
    # The exporter refuses a name such as a number, which the file can have.
    exported = output if not output.isdigit() else "output"
    # The exporter that torch now prefers needs a further package (onnxscript) for the same graph.
    with _no_advice():
        torch.onnx.export(
            network,
            (example,),
            str(path),
            dynamo=False,
            input_names=[name],
            output_names=[exported, *more],
            dynamic_axes={tensor_name: {0: "batch"} for tensor_name in (name, exported, *more)}
            if batched
            else None,
            opset_version=OPSET,
        )
    model = onnx.load(path)
    if exported != output:
        for node in model.graph.node:
            node.output[:] = [output if tensor == exported else tensor for tensor in node.output]
        model.graph.output[0].name = output
        onnx.save(model, path)
    onnx.checker.check_model(model, full_check=True)
    return {"form": "ONNX", "opset": OPSET}


def open_onnx(path: Path, name: str, output: str, *, batched: bool = True) -> Answers:
    """Open `path` with ONNX Runtime; if it is not `batched`, run one row at a time."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run_rows(rows: npt.NDArray[Any]) -> Scores:
        batches = [rows] if batched else np.split(rows, len(rows))
        return np.concatenate([session.run([output], {name: batch})[0] for batch in batches])

    return run_rows


def _write_torchscript(network: nn.Module, example: torch.Tensor | None, path: Path) -> dict[str, Any]:
    """Trace the network with an example, or compile its code without one, and save it.

    The server freezes and fuses it, since that form cannot be saved.
    """
    try:
        with torch.no_grad(), _no_advice():
            module: Any = torch.jit.script(network) if example is None else torch.jit.trace(network, example)  # type: ignore[no-untyped-call]
    except Exception as exc:  # the compiler's own, and whatever a network's code raises under it
        if example is not None:
            raise
        reason = next((line for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
        raise GourmetError(
            f"torch.jit.script cannot compile this network ({reason}): use --ts-trace"
        ) from exc
    # Through a file of Python's: where the disk is full, torch's own writer ends with nothing but a position.
    with _no_advice(), path.open("wb") as file:
        torch.jit.save(module, file)
    return {"form": f"TorchScript, {'scripted' if example is None else 'traced'}"}


def open_torchscript(path: Path) -> Answers:
    """Open `path` as it is served: frozen, and fused for this machine."""
    with _no_advice():
        network = torch.jit.load(str(path)).eval()  # type: ignore[no-untyped-call]
        return eager(torch.jit.optimize_for_inference(torch.jit.freeze(network)))


def eager(network: nn.Module) -> Answers:
    """Return a function that asks a network of torch."""

    def run_rows(rows: npt.NDArray[Any]) -> Scores:
        with torch.inference_mode():
            return network(torch.from_numpy(rows)).numpy()  # type: ignore[no-any-return]

    return run_rows


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
        tensor(output, types[1], (*leading, len(system.labels)), labels_file=LABELS_FILE),
        instances=2,  # they share the CPU's threads
        parameters={
            SYSTEM_PARAMETER: system.name,
            LABELS_PARAMETER: json.dumps(system.labels, ensure_ascii=False),
        },
    )


@dataclass(frozen=True)
class ClassifierExport:
    """Export a classifier; fulfils `gourmet.repository.gate.Export`."""

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

    def open(
        self, weights: Path, data: Path | None, tick: ReportProgress, *, architecture: str = ""
    ) -> Deployment:
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
                calibration, report = calibrated(
                    self.system, self.data, data, lambda rows: answers(self.system.normalise(rows)), tick
                )
                accuracy = dict(report.measures)
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
            read_rehearsal(weights, last.before_it, last.layer),
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

    def _pictures(
        self, data: Path | None, tick: ReportProgress
    ) -> tuple[Pixels, Pixels, npt.NDArray[np.int64] | None]:
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
