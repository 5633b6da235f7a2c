"""Served models of a classifier, each of which compares itself with the network that it was made from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import nn

from gourmet.deploying import onnx_export
from gourmet.deploying.target import Check
from gourmet.pictures.classifier import PictureClassifier
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.evaluation_file import Calibration
from gourmet.tasks.classification.gate import Answers, Pixels, Scores
from gourmet.tasks.classification.model_config import new_model

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


@dataclass(frozen=True)
class ClassifierTarget:
    """A model of a classifier; fulfils `gourmet.deploying.target.Target`."""

    source: Source
    model: str
    file: str
    write: Callable[[Source, Path], dict[str, Any]]
    answers: Callable[[Path], Answers]  # opens the file as the server will
    compare: Callable[[Source, Answers], Sequence[Check]]
    new_folder: Mapping[str, str] = field(default_factory=dict)

    def build(self, path: Path) -> dict[str, Any]:
        return self.write(self.source, path)

    def verify(self, path: Path) -> Sequence[Check]:
        try:
            model = self.answers(path)
        except Exception as exc:  # a file that cannot be opened fails like one that answers wrongly
            return [gate.cannot_be_opened(exc)]
        return self.compare(self.source, model)


def exactly(source: Source, model: Answers, *, batched: bool = True) -> Sequence[Check]:
    """For a model whose scores are the network's logits."""
    return gate.same_answers(source.eager, model, source.held_out, batched=batched)


def nearly(source: Source, model: Answers) -> Sequence[Check]:
    """For a model whose probabilities are nearly the network's."""
    return gate.close_answers(source.eager, model, source.held_out, source.held_out_classes)


Format = Callable[[Source], ClassifierTarget]
Formats = Mapping[str, Format]


@dataclass(frozen=True)
class Onnx:
    """The format of most classifiers: an ONNX file that takes the network's tensor and gives its logits."""

    model: str
    input: str = "input"
    output: str = "output"
    batched: bool = True

    def __call__(self, source: Source) -> ClassifierTarget:
        def answers(path: Path) -> Answers:
            return open_onnx(path, self.input, self.output, source.system.normalise)

        shape = source.example(1).shape[1:]
        new = new_model(source.system, self.model, (self.input, shape), self.output, batched=self.batched)
        compare = functools.partial(exactly, batched=self.batched)
        return ClassifierTarget(source, self.model, "model.onnx", self._write, answers, compare, new)

    def _write(self, source: Source, path: Path) -> dict[str, Any]:
        example = source.example(2 if self.batched else 1)
        # The exporter refuses a name such as a number, which the file can have.
        name = self.output if not self.output.isdigit() else "output"
        onnx_export.export(source.network, example, path, self.input, name, batched=self.batched)
        if name != self.output:
            onnx_export.rename_output(path, name, self.output)
        shape = ", ".join(map(str, ("N" if self.batched else 1, *example.shape[1:])))
        return onnx_export.check(path, f"float32 [{shape}]")


class TorchScript:
    """A traced network, for a Python model that opens it."""

    def __init__(self, model: str) -> None:
        self.model: Final = model

    def __call__(self, source: Source) -> ClassifierTarget:
        def answers(path: Path) -> Answers:
            with onnx_export.old_but_fastest():
                network = torch.jit.load(str(path)).eval()  # type: ignore[no-untyped-call]
                served = torch.jit.optimize_for_inference(torch.jit.freeze(network))
                return eager(served, source.system.normalise)

        return ClassifierTarget(source, self.model, "model.pt", self._write, answers, exactly)

    def _write(self, source: Source, path: Path) -> dict[str, Any]:
        """Freezing and fusing are the server's: what they make cannot be saved."""
        example = source.example(2)
        with torch.no_grad(), onnx_export.old_but_fastest():
            traced = torch.jit.trace(source.network, example)  # type: ignore[no-untyped-call]
        traced.save(str(path))
        return {
            "form": "TorchScript, traced",
            "input": f"float32 [N, {', '.join(map(str, example.shape[1:]))}]",
        }


def eager(network: nn.Module, normalise: Normalise) -> Answers:
    """A network asked with pixels."""

    def answers(pixels: Pixels) -> Scores:
        with torch.inference_mode():
            return network(torch.from_numpy(normalise(pixels))).numpy()  # type: ignore[no-any-return]

    return answers


def open_onnx(path: Path, name: str, output: str, normalise: Normalise = lambda pixels: pixels) -> Answers:
    """`path` opened by ONNX Runtime; asked with pixels, of which `normalise` makes its input."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def answers(pixels: Pixels) -> Scores:
        return np.asarray(session.run([output], {name: normalise(pixels)})[0])

    return answers
