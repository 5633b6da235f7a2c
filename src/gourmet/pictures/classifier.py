"""What classifiers of pictures have in common; a system's contract fills in what is its own.

numpy and Pillow only: the web app, the served models, the trainer and the checks import it, and none of
them repeats a line of it.
"""

from __future__ import annotations

import heapq
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.contracts import LABELS_PARAMETER, BadAnswer, BadModel, ModelInfo, Task, Tensors
from gourmet.pictures.decode import PictureInfo, Pixels, Size, identify, square_pixels
from gourmet.pictures.header import Header

Floats = npt.NDArray[np.float32]
TOP: Final = 5
# What two labels have together where an answer that is not sure names both.
_BOTH: Final = 0.85
# A picture is surely relevant from three quarters of the way between its model's threshold and 1. Measured on
# sources held out, with a threshold of 0.48: 3 % of the food and 11 % of other pictures are below it.
_SURELY: Final = 0.75
EXAMPLE_SIZE: Final[Size] = (400, 300)
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Probabilities [rows, classes] of `logits`; a temperature above 1 makes them more modest."""
    shifted = logits / np.float32(temperature)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    total: Floats = shifted.sum(axis=-1, keepdims=True)
    return np.asarray(shifted / total, dtype=np.float32)


def relevance(logits: Floats) -> Floats:
    """[rows]: of the network's subject against anything else, from the level of its [rows, labels] logits."""
    level = np.logaddexp.reduce(logits, axis=-1)
    return np.asarray(np.exp(np.minimum(level, 0)) / (1 + np.exp(-np.abs(level))), dtype=np.float32)


def surely(subject_threshold: float) -> float:
    """From which relevance on a picture surely shows the subject of a model with this threshold."""
    return subject_threshold + _SURELY * (1.0 - subject_threshold)


class Ranked:
    """The labels of an answer by how likely they are, and what may be said of the picture.

    `relevance` is how likely it shows what the system is about at all, where the model tells that.
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    threshold: float = 0.0
    relevance: float | None = None
    subject_threshold: float = 0.0

    @cached_property
    def _best(self) -> list[int]:
        return heapq.nlargest(TOP, range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def top(self) -> list[tuple[str, float]]:
        """The likeliest labels with their probabilities, best first."""
        return [(self.labels[at], self.probabilities[at]) for at in self._best]

    @property
    def label(self) -> str:
        return self.labels[self.class_id]

    @property
    def class_id(self) -> int:
        return self._best[0]

    @property
    def probability(self) -> float:
        return self.probabilities[self.class_id]

    @property
    def relevant(self) -> bool:
        """Whether it is not said to show something else."""
        return self.relevance is None or self.relevance >= self.subject_threshold

    @property
    def doubtful(self) -> bool:
        """Whether it may show something else."""
        return (
            self.relevance is not None and self.relevant and self.relevance < surely(self.subject_threshold)
        )

    @property
    def sure(self) -> bool:
        return self.relevant and not self.doubtful and self.probability >= self.threshold

    @property
    def candidates(self) -> list[tuple[str, float]]:
        """Where the answer is not sure, and two labels share most of the probability: these two."""
        two = self.top[:2]
        shared = len(two) == 2 and sum(probability for _, probability in two) >= _BOTH
        return two if shared and self.relevant and not self.sure else []


@dataclass(frozen=True)
class PictureClassifier:
    """A system whose models give a picture one label; fulfils `gourmet.contracts.System`."""

    name: str
    title: str
    model_variable: str
    default_model: str
    labels: tuple[str, ...]
    sample_file: Path
    input_size: int = 224
    # What the only input of a model may be: a picture as bytes, pixels, or the normalised tensor.
    datatypes: tuple[str, ...] = ("BYTES", "UINT8", "FP32")
    # NCHW or NHWC, where it is not as usual: pixels with the channels last, tensors with the channels first.
    layout: str = ""
    # The channel statistics that clients of a model with an FP32 or FP16 input apply themselves: ImageNet's.
    # One of each is for grey pictures.
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    # The names of a model's output, if it is probabilities or if it is logits.
    probability_outputs: tuple[str, ...] = ("PROBABILITIES", "probabilities")
    logit_outputs: tuple[str, ...] = ("output",)
    # Whether a picture may show several of the labels: each has a probability of its own then.
    multi_label: bool = False
    # What all pictures show, such as food, where models tell pictures that do not.
    subject: str = ""
    metrics_prefix: str = ""
    # The network of torchvision that it is, where that is all there is to say of it.
    architecture: str = ""
    task: Task = "classification"

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics_prefix", self.metrics_prefix or self.name)

    # ---- what every system says

    def sample(self) -> bytes:
        return self.sample_file.read_bytes()

    def examples(self, count: int, seed: int, size: Size = EXAMPLE_SIZE) -> Sequence[bytes]:
        """So many views of the sample: see gourmet.pictures.drawn."""
        from gourmet.pictures.drawn import views

        return views(self.sample(), count, size=size, seed=seed)

    def request_inputs(self, example: bytes, model: ModelInfo) -> Tensors:
        if not self.takes(model):
            takes = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in model.inputs)
            raise BadModel(
                f"{model.name!r} takes {takes}; a {self.name} model takes one input of "
                f"{', '.join(self.datatypes)}: set {self.model_variable} to one"
            )
        return {model.inputs[0].name: self.encode(example, model.inputs[0].datatype)}

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        labels = self.labels_of(model)
        rows = self.probabilities(outputs, model)
        if rows.shape != (1, len(labels)) or not self.are_probabilities(rows):
            raise BadAnswer(
                f"the model {model.name!r} answered one picture with probabilities of shape "
                f"{list(rows.shape)} that sum to {rows.sum():.3f}; expected {[1, len(labels)]} and "
                f"{'numbers from 0 to 1' if self.multi_label else 'a sum of 1'}"
            )
        best = int(rows[0].argmax())
        return f"the sample is {labels[best]}, {rows[0, best]:.0%} sure"

    # ---- what classification adds

    def identify(self, data: bytes) -> PictureInfo:
        return identify(data)

    def nothing(self, count: int, seed: int) -> Sequence[bytes]:
        """Return made-up pictures that do not show the subject."""
        from gourmet.pictures import made_up

        return made_up.pictures(count, seed)

    def pixels(self, data: bytes | Header) -> Pixels:
        """A picture as uint8 [size, size, 3]; raises PictureError."""
        return square_pixels(data, self.input_size)

    @cached_property
    def _line(self) -> tuple[Floats, Floats]:
        """normalise(x) = (x / 255 - mean) / std, as one multiplication and one addition per value."""
        mean, std = (np.array(values, ndmin=3).T for values in (self.mean, self.std))
        return (1.0 / (255.0 * std)).astype(np.float32), (-mean / std).astype(np.float32)

    def normalise(self, image: Pixels) -> Floats:
        """uint8 [..., size, size, 3] as the network's float32 [..., channels, size, size], contiguous."""
        image = self._coloured(image)
        # One pass from the bytes to their places: twelve times as fast as scaling first and moving after.
        planes = np.moveaxis(image, -1, -3)
        scale, shift = self._line
        out = np.empty(planes.shape, np.float32)
        np.multiply(planes, scale, out=out)
        out += shift
        return out

    def encode(self, data: bytes, datatype: str) -> npt.NDArray[Any]:
        """A picture as the one-row input tensor that a model with an input of `datatype` takes.

        BYTES: the picture as it is; UINT8: pixels; FP32 or FP16: the normalised tensor.
        """
        if datatype == "BYTES" and datatype in self.datatypes:
            return np.array([[data]], dtype=np.object_)
        return self.arrange(self.pixels(data), datatype)

    def arrange(self, image: Pixels, datatype: str) -> npt.NDArray[Any]:
        """Decoded `pixels` as the one-row input tensor that a model with an input of `datatype` takes.

        BYTES: as a BMP, which is made and read at once and keeps every pixel as it is.
        """
        if datatype not in self.datatypes:
            raise ValueError(
                f"an input of type {datatype} is not one of {', '.join(self.datatypes)}, "
                f"which {self.name} models take"
            )
        if datatype == "BYTES":
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "BMP")
            return np.array([[buffer.getvalue()]], dtype=np.object_)
        return self.tensor(image[np.newaxis], datatype)

    def tensor(self, images: Pixels, datatype: str) -> npt.NDArray[Any]:
        """Decoded pictures as the rows of an input of UINT8, FP32 or FP16, in the network's layout."""
        rows: npt.NDArray[Any]
        if datatype == "UINT8":
            rows = self._coloured(images)
            return np.ascontiguousarray(np.moveaxis(rows, -1, -3)) if self.layout == "NCHW" else rows
        rows = self.normalise(images)
        rows = np.moveaxis(rows, -3, -1) if self.layout == "NHWC" else rows
        return np.ascontiguousarray(rows, np.float16 if datatype == "FP16" else np.float32)

    def _coloured(self, image: Pixels) -> Pixels:
        """With the channels that the network takes: all three, or one, which is Pillow's grey."""
        if len(self.mean) == 3:
            return image
        weighed = image @ np.array([[19595], [38470], [7471]], np.uint32)
        return np.asarray((weighed + 0x8000) >> 16, np.uint8)

    def labels_of(self, model: ModelInfo) -> tuple[str, ...]:
        text = model.parameters.get(LABELS_PARAMETER, "")
        labels = self.labels
        if text:
            try:
                labels = tuple(map(str, json.loads(text)))
            except (ValueError, TypeError):
                raise BadModel(
                    f"the config of {model.name!r} says {LABELS_PARAMETER} = {text[:80]!r}; "
                    'a JSON list is expected, such as ["rose", "tulip"]'
                ) from None
        for output in model.outputs:
            scored = output.name in (*self.probability_outputs, *self.logit_outputs)
            if scored and output.shape[-1] not in (-1, len(labels)):
                raise BadModel(
                    f"{model.name!r} gives {output.shape[-1]} scores a picture, and there are {len(labels)} "
                    f"labels of {self.name}: name the model's own in its config, as the parameter "
                    f"{LABELS_PARAMETER!r} with a JSON list, or set {self.model_variable} to another model"
                )
        return labels

    def probabilities(self, outputs: Tensors, model: ModelInfo) -> Floats:
        """The [rows, labels] probabilities in a served model's `outputs`, whichever of the models it is.

        Models that answer with probabilities have applied the temperature themselves; where they answer
        with logits it is the client's to apply.
        """
        try:
            return self.read(outputs, model.temperature, self.labels_of(model))
        except ValueError as exc:
            raise BadAnswer(f"{model.name!r} does not answer as {self.name} models do: {exc}") from exc

    def read(self, outputs: Tensors, temperature: float = 1.0, labels: Sequence[str] = ()) -> Floats:
        """The same for outputs that no server gave; raises ValueError."""
        rows, are_logits = self._scores(outputs, len(labels or self.labels))
        if are_logits:
            return self.scaled(rows, temperature)
        if self.multi_label and not self.are_probabilities(rows):
            raise ValueError("a probability is not between 0 and 1")
        return np.asarray(rows / rows.sum(axis=1, keepdims=True)) if self.subject else rows

    def scaled(self, logits: Floats, temperature: float = 1.0) -> Floats:
        """Probabilities [rows, labels] of `logits`."""
        if not self.multi_label:
            return softmax(logits, temperature)
        return np.asarray(0.5 + 0.5 * np.tanh(logits / np.float32(2.0 * temperature)), np.float32)

    def are_probabilities(self, rows: Floats) -> bool:
        """Whether each row may be an answer: it sums to 1, or has a probability for each label."""
        within = (rows >= 0.0) & (rows <= 1.0) if self.multi_label else rows.sum(axis=1)
        return bool(np.allclose(within, 1.0, atol=1e-3))  # not true of nan either

    def relevance(self, outputs: Tensors, model: ModelInfo) -> Floats | None:
        """[rows]: how likely each picture shows the subject at all; None where `model` does not tell.

        It needs no output of its own: logits have it in their level, which no softmax looks at, and
        probabilities in what they sum to. A model whose probabilities sum to 1 names it.
        """
        if not (self.subject and model.subject_threshold):
            return None
        if (name := self.subject.upper()) in outputs:
            return np.asarray(outputs[name], dtype=np.float32).reshape(-1)
        return self._level(outputs, len(self.labels_of(model)))

    def answers(self, outputs: Tensors, temperature: float = 1.0) -> tuple[Floats, Floats]:
        """Probabilities [rows, labels], and how likely each row shows the subject, of a network's outputs."""
        return self.read(outputs, temperature), self._level(outputs, len(self.labels))

    def _level(self, outputs: Tensors, labels: int) -> Floats:
        rows, are_logits = self._scores(outputs, labels)
        return relevance(rows) if are_logits else np.asarray(rows.sum(axis=1))

    def _scores(self, outputs: Tensors, labels: int) -> tuple[Floats, bool]:
        """[rows, labels], and whether they are logits; raises ValueError."""
        names = (*self.probability_outputs, *self.logit_outputs)
        name = next((name for name in names if name in outputs), None)
        if name is None:
            raise ValueError(
                f"outputs {sorted(outputs)} hold none of {', '.join(names)}, "
                f"by which {self.name} models answer"
            )
        rows = np.asarray(outputs[name], dtype=np.float32).reshape(-1, labels)
        return rows, name not in self.probability_outputs

    def takes(self, model: ModelInfo) -> bool:
        return len(model.inputs) == 1 and model.inputs[0].datatype in self.datatypes
