"""The shared code of picture classifiers. A system's contract is an instance with its own values.

numpy and Pillow only: the web app, the served models, the training and the checks use it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.contracts import LABELS_PARAMETER, BadAnswer, BadModel, ModelInfo, Task, Tensors
from gourmet.pictures.certainty import Floats, Named, relevance, softmax
from gourmet.pictures.decode import Frame, PictureInfo, Pixels, Size, framed_pixels, identify
from gourmet.pictures.header import Header

EXAMPLE_SIZE: Final[Size] = (400, 300)
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class PictureClassifier:
    """A system whose models classify pictures. It implements `gourmet.contracts.System`."""

    name: str
    title: str
    model_variable: str
    default_model: str
    labels: tuple[str, ...]
    sample_file: Path
    input_size: int = 224
    # The allowed types of a model's only input: the picture's bytes, pixels, or the normalised tensor.
    datatypes: tuple[str, ...] = ("BYTES", "UINT8", "FP32")
    # NCHW or NHWC. By default, pixels have the channels last and tensors have them first.
    layout: str = ""
    # Per-channel mean and standard deviation, applied by clients of a model with an FP32 or FP16 input. A
    # single value of each is for grey pictures.
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    # How a network that was trained elsewhere wants pictures cut and resized: see decode.Frame.
    squash: bool = False
    edge: int = 0
    resample: str = ""
    # The names of outputs with probabilities, and of outputs with logits.
    probability_outputs: tuple[str, ...] = ("PROBABILITIES", "probabilities")
    logit_outputs: tuple[str, ...] = ("output",)
    # True if a picture may have several labels. Each label then has its own probability.
    multi_label: bool = False
    # The subject of all pictures, such as food, if the models detect pictures of something else.
    subject: str = ""
    # The subject in a sentence, if it needs an article: "a digit".
    subject_in_words: str = ""
    # Of finer names than labels: the probability from which on the best is said, and the one of the best two
    # together, from which on both are said.
    likely: float = 0.0
    perhaps: float = 0.0
    metrics_prefix: str = ""
    # The torchvision network, if the system has no network code of its own.
    architecture: str = ""
    task: Task = "classification"

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics_prefix", self.metrics_prefix or self.name)

    # ---- members that every system has

    def sample(self) -> bytes:
        return self.sample_file.read_bytes()

    def examples(self, count: int, seed: int, size: Size = EXAMPLE_SIZE) -> Sequence[bytes]:
        """Return `count` views of the sample: see gourmet.pictures.made_up."""
        from gourmet.pictures.made_up import views

        return views(self.sample(), count, size=size, seed=seed)

    def request_inputs(self, example: bytes, model: ModelInfo) -> Tensors:
        if not self.takes(model):
            inputs = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in model.inputs)
            raise BadModel(
                f"{model.name!r} takes {inputs}, but {self.name} models take one input of the type "
                f"{' or '.join(self.datatypes)}: set {self.model_variable} to a {self.name} model"
            )
        return {model.inputs[0].name: self.encode(example, model.inputs[0].datatype)}

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        labels = self.labels_of(model)
        rows = self.probabilities(outputs, model)
        if rows.shape != (1, len(labels)) or not self.are_probabilities(rows):
            raise BadAnswer(
                f"the model {model.name!r} answered one picture with probabilities of shape "
                f"{list(rows.shape)} that sum to {rows.sum():.3f}; expected are the shape {[1, len(labels)]} "
                f"and {'numbers from 0 to 1' if self.multi_label else 'a sum of 1'}"
            )
        best = int(rows[0].argmax())
        return f"the sample is {labels[best]}, {rows[0, best]:.0%}"

    # ---- members of classification

    def identify(self, data: bytes) -> PictureInfo:
        return identify(data)

    def nothing(self, count: int, seed: int) -> Sequence[bytes]:
        """Return made-up pictures that do not show the subject."""
        from gourmet.pictures import made_up

        return made_up.pictures(count, seed)

    def pixels(self, data: bytes | Header) -> Pixels:
        """Decode a picture as uint8 [size, size, 3]; raise PictureError."""
        task: Literal["square", "squashed"] = "squashed" if self.squash else "square"
        return framed_pixels(data, Frame(task, self.input_size, self.edge, self.resample))

    @cached_property
    def _scale_and_shift(self) -> tuple[Floats, Floats]:
        """normalise(x) = (x / 255 - mean) / std as one multiplication and one addition."""
        mean, std = (np.array(values, ndmin=3).T for values in (self.mean, self.std))
        return (1.0 / (255.0 * std)).astype(np.float32), (-mean / std).astype(np.float32)

    def normalise(self, image: Pixels) -> Floats:
        """Normalise uint8 [..., size, size, 3] to contiguous float32 [..., channels, size, size]."""
        image = self._with_channels(image)
        # Moving the axis before the multiplication is twelve times as fast as after it.
        planes = np.moveaxis(image, -1, -3)
        scale, shift = self._scale_and_shift
        out = np.empty(planes.shape, np.float32)
        np.multiply(planes, scale, out=out)
        out += shift
        return out

    def encode(self, data: bytes, datatype: str) -> npt.NDArray[Any]:
        """Return the one-row input tensor of `datatype` for a picture.

        BYTES: the unchanged picture; UINT8: pixels; FP32 or FP16: the normalised tensor.
        """
        if datatype == "BYTES" and datatype in self.datatypes:
            return np.array([[data]], dtype=np.object_)
        return self.arrange(self.pixels(data), datatype)

    def arrange(self, image: Pixels, datatype: str) -> npt.NDArray[Any]:
        """Return the one-row input tensor of `datatype` for decoded pixels.

        BYTES: a BMP, which keeps every pixel and is fast to write and read.
        """
        if datatype not in self.datatypes:
            raise ValueError(
                f"{self.name} models take inputs of the types {', '.join(self.datatypes)}, not {datatype}"
            )
        if datatype == "BYTES":
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "BMP")
            return np.array([[buffer.getvalue()]], dtype=np.object_)
        return self.tensor(image[np.newaxis], datatype)

    def tensor(self, images: Pixels, datatype: str) -> npt.NDArray[Any]:
        """Return decoded pictures as rows of a UINT8, FP32 or FP16 input, in the network's layout."""
        rows: npt.NDArray[Any]
        if datatype == "UINT8":
            rows = self._with_channels(images)
            return np.ascontiguousarray(np.moveaxis(rows, -1, -3)) if self.layout == "NCHW" else rows
        rows = self.normalise(images)
        rows = np.moveaxis(rows, -3, -1) if self.layout == "NHWC" else rows
        return np.ascontiguousarray(rows, np.float16 if datatype == "FP16" else np.float32)

    def _with_channels(self, image: Pixels) -> Pixels:
        """Return the image with the network's channels: all three, or one, computed as Pillow's grey."""
        if len(self.mean) == 3:
            return image
        weighted = image @ np.array([[19595], [38470], [7471]], np.uint32)
        return np.asarray((weighted + 0x8000) >> 16, np.uint8)

    def labels_of(self, model: ModelInfo) -> tuple[str, ...]:
        text = model.parameters.get(LABELS_PARAMETER, "")
        labels = self.labels
        if text:
            try:
                labels = tuple(map(str, json.loads(text)))
            except (ValueError, TypeError):
                raise BadModel(
                    f"the config of {model.name!r} has {LABELS_PARAMETER} = {text[:80]!r}; "
                    'it must be a JSON list, such as ["rose", "tulip"]'
                ) from None
        for output in model.outputs:
            has_scores = output.name in (*self.probability_outputs, *self.logit_outputs)
            if has_scores and output.shape[-1] not in (-1, len(labels)):
                raise BadModel(
                    f"{model.name!r} returns {output.shape[-1]} scores a picture, but {self.name} has "
                    f"{len(labels)} labels: add the model's labels to its config, as a JSON list in the "
                    f"parameter {LABELS_PARAMETER!r}, or set {self.model_variable} to another model"
                )
        return labels

    def probabilities(self, outputs: Tensors, model: ModelInfo, labels: Sequence[str] = ()) -> Floats:
        """Return the probabilities [rows, labels] in the `outputs` of any served model of this system.

        Models that return probabilities have applied the temperature; for logits, it is applied here. Callers
        that have parsed the model's labels pass them.
        """
        try:
            return self.probabilities_from(outputs, model.temperature, labels or self.labels_of(model))
        except ValueError as exc:
            raise BadAnswer(f"{model.name!r} does not answer like {self.name} models: {exc}") from exc

    def probabilities_from(
        self, outputs: Tensors, temperature: float = 1.0, labels: Sequence[str] = ()
    ) -> Floats:
        """Return the probabilities [rows, labels] in the outputs of a network; raise ValueError."""
        rows, are_logits = self._scores(outputs, len(labels or self.labels))
        if are_logits:
            return self.to_probabilities(rows, temperature)
        if self.multi_label and not self.are_probabilities(rows):
            raise ValueError("a probability is not between 0 and 1")
        return np.asarray(rows / rows.sum(axis=1, keepdims=True)) if self.subject else rows

    def to_probabilities(self, logits: Floats, temperature: float = 1.0) -> Floats:
        """Return the probabilities [rows, labels] of logits."""
        if not self.multi_label:
            return softmax(logits, temperature)
        return np.asarray(0.5 + 0.5 * np.tanh(logits / np.float32(2.0 * temperature)), np.float32)

    def finer(self, outputs: Tensors, rows: int = 1) -> list[list[Named]]:
        """Return the best finer names of each row in `outputs`, best first; here none."""
        return [[] for _ in range(rows)]

    def finer_name_of(self, folder: str) -> str:
        """Return the finer name that a folder of labelled pictures is called after; here none."""
        return ""

    def are_probabilities(self, rows: Floats) -> bool:
        """Return whether each row sums to 1; with `multi_label`, whether all values are from 0 to 1."""
        within = (rows >= 0.0) & (rows <= 1.0) if self.multi_label else rows.sum(axis=1)
        return bool(np.allclose(within, 1.0, atol=1e-3))  # false for nan

    def relevance(self, outputs: Tensors, model: ModelInfo, labels: Sequence[str] = ()) -> Floats | None:
        """Return the probability [rows] that each picture shows the subject; None if `model` has none.

        The level of logits and the sum of probabilities hold it. A model whose probabilities sum to 1 has an
        output named after the subject.
        """
        if not (self.subject and model.subject_threshold):
            return None
        if (name := self.subject.upper()) in outputs:
            return np.asarray(outputs[name], dtype=np.float32).reshape(-1)
        return self.subject_probability(outputs, len(labels or self.labels_of(model)))

    def scores_from(self, outputs: Tensors, temperature: float = 1.0) -> tuple[Floats, Floats]:
        """Return the probabilities [rows, labels] of a network's outputs, and the relevance of each row."""
        return self.probabilities_from(outputs, temperature), self.subject_probability(
            outputs, len(self.labels)
        )

    def subject_probability(self, outputs: Tensors, labels: int) -> Floats:
        rows, are_logits = self._scores(outputs, labels)
        return relevance(rows) if are_logits else np.asarray(rows.sum(axis=1))

    def _scores(self, outputs: Tensors, labels: int) -> tuple[Floats, bool]:
        """Return the scores [rows, labels], and whether they are logits; raise ValueError."""
        names = (*self.probability_outputs, *self.logit_outputs)
        name = next((name for name in names if name in outputs), None)
        if name is None:
            raise ValueError(
                f"the outputs {sorted(outputs)} have none of {', '.join(names)}, "
                f"the outputs of {self.name} models"
            )
        rows = np.asarray(outputs[name], dtype=np.float32).reshape(-1, labels)
        return rows, name not in self.probability_outputs

    def takes(self, model: ModelInfo) -> bool:
        return len(model.inputs) == 1 and model.inputs[0].datatype in self.datatypes
