"""Telling what is on a picture, by whichever model of a system Triton serves."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from app import tracing
from app.errors import BadPicture, InferenceFailed, ModelNotReady, ServingError, UnknownModel
from app.inference import Answer, Deadline, ModelInfo, Refused, TensorSpec, Triton
from app.inside import Inside, Watch
from app.system import System
from gourmet.systems.food11 import contract as food11
from gourmet.systems.pictures import Pixels
from gourmet.systems.scores import Floats

TOP: Final = 5
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Prediction:
    """What a picture shows; `sure` is false below the threshold that the model was trained to need."""

    probabilities: tuple[float, ...]
    model: str
    version: str
    threshold: float = 0.0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    system: System = food11
    inside: Inside | None = None

    @functools.cached_property
    def top(self) -> list[tuple[str, float]]:
        """The likeliest labels with their probabilities, best first."""
        labelled = zip(self.system.LABELS, self.probabilities, strict=True)
        return sorted(labelled, key=lambda pair: -pair[1])[:TOP]

    @property
    def label(self) -> str:
        return self.top[0][0]

    @property
    def class_id(self) -> int:
        return self.system.LABELS.index(self.label)

    @property
    def probability(self) -> float:
        return self.top[0][1]

    @property
    def sure(self) -> bool:
        return self.probability >= self.threshold


@dataclass(frozen=True)
class ServedModel:
    """A model of a system that is ready, with what it takes."""

    name: str
    version: str
    input: TensorSpec
    threshold: float

    @property
    def bytes_kind(self) -> str:
        """What of a photo is sent to it: the photo as it is, its pixels, or the normalised tensor."""
        return {"BYTES": "photo", "UINT8": "pixels", "FP32": "tensor"}[self.input.datatype]


@dataclass(frozen=True)
class Rows:
    """One version of a model, asked about several pictures of the size that it takes at once."""

    model: str
    version: str
    at_once: int
    ask: Callable[[Pixels], Floats]


class Classifier(Protocol):
    system: System

    def classify(
        self,
        photo: bytes,
        deadline: Deadline,
        request_id: str = "",
        model: str = "",
        *,
        closely: bool = False,
    ) -> Prediction:
        """Ask `model`, or else the one that was set; `closely` where it is to be told what was inside Triton.

        Raise PictureError for a photo that cannot be used and ServingError for all else.
        """

    def rows(self, deadline: Deadline, request_id: str = "", model: str = "") -> Rows:
        """The same model, to be asked about pictures that were decoded already."""

    def models(self, deadline: Deadline) -> list[ServedModel]:
        """The system's models that are ready."""

    def close(self) -> None: ...


class TritonClassifier:
    """Asks a served model, `model` unless told otherwise, sending what it takes: the photo or a tensor."""

    def __init__(self, triton: Triton, model: str, system: System) -> None:
        self.system = system
        self._triton = triton
        self._model = model
        self._versions: dict[str, str] = {}

    def classify(
        self,
        photo: bytes,
        deadline: Deadline,
        request_id: str = "",
        model: str = "",
        *,
        closely: bool = False,
    ) -> Prediction:
        try:
            info = self._choose(model or self._model, deadline)
        except ServingError:
            self.system.identify(photo)  # what is no photo is refused for that, whatever else is the matter
            raise
        try:
            return self._ask(info, photo, deadline, request_id, closely)
        except Refused as exc:
            # The model may have been replaced by one that takes something else.
            now = self._triton.describe(info.name, deadline, afresh=True)
            if now.inputs != info.inputs:
                return self._ask(now, photo, deadline, request_id, closely)
            if info.inputs[0].datatype == "BYTES":  # Triton decoded it, so the fault is the picture's
                raise BadPicture("broken_picture", str(exc)) from exc
            raise

    def rows(self, deadline: Deadline, request_id: str = "", model: str = "") -> Rows:
        name = self._choose(model or self._model, deadline).name
        info = self._triton.describe(name, deadline, afresh=True)
        datatype = self._datatype(info)

        def ask(images: Pixels) -> Floats:
            tensor = np.concatenate([self.system.arrange(image, datatype) for image in images])
            answer = self._triton.infer(name, {info.inputs[0].name: tensor}, deadline, request_id)
            if answer.model_version != info.version:
                raise InferenceFailed(f"{name} was replaced while it was asked: ask again")
            return self._probabilities(answer, info, len(images))

        return Rows(name, info.version, max(1, info.max_batch_size), ask)

    def models(self, deadline: Deadline) -> list[ServedModel]:
        found = []
        for name in self._triton.served(deadline):
            with contextlib.suppress(ModelNotReady):  # unloaded since it was listed
                info = self._triton.describe(name, deadline)
                if self._is_ours(info):
                    threshold = _number(info, "threshold", 0.0)
                    found.append(ServedModel(name, info.version, info.inputs[0], threshold))
        return found

    def close(self) -> None:
        self._triton.close()

    def _choose(self, model: str, deadline: Deadline) -> ModelInfo:
        """What the model takes. The one that was set may be anything; a visitor's choice is the system's."""
        if model == self._model:
            return self._triton.describe(model, deadline)
        try:
            # A name like `a/b` would ask another question of Triton.
            info = self._triton.describe(model, deadline) if _NAME.fullmatch(model) else None
        except ModelNotReady as exc:
            if exc.loading:
                raise
            info = None
        if info is None or not self._is_ours(info):
            raise UnknownModel(model, [served.name for served in self.models(deadline)])
        return info

    def _is_ours(self, info: ModelInfo) -> bool:
        return info.parameters.get("system") == self.system.NAME and self._takes_a_picture(info)

    def _takes_a_picture(self, info: ModelInfo) -> bool:
        return len(info.inputs) == 1 and info.inputs[0].datatype in self.system.DATATYPES

    def _datatype(self, info: ModelInfo) -> str:
        """The datatype of the model's only input; raise unless it can be one of the system's models."""
        if not self._takes_a_picture(info):
            takes = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in info.inputs)
            raise InferenceFailed(
                f"{info.name!r} takes {takes}; a {self.system.NAME} model takes one input of "
                f"{', '.join(self.system.DATATYPES)}: set {self.system.MODEL_ENV} to one"
            )
        return info.inputs[0].datatype

    def _ask(
        self, info: ModelInfo, photo: bytes, deadline: Deadline, request_id: str, closely: bool
    ) -> Prediction:
        with tracing.span("decode", photo_bytes=len(photo)):
            tensor, phases = self._prepared(photo, self._datatype(info))
        watch = Watch(self._triton, info.name, deadline) if closely else None
        prepared = time.perf_counter()
        answer = self._triton.infer(info.name, {info.inputs[0].name: tensor}, deadline, request_id)
        answered = time.perf_counter()
        inside = watch.inside(answer.model_version) if watch else None
        if answer.model_version != self._versions.get(info.name):
            self._versions[info.name] = answer.model_version
            info = self._triton.describe(info.name, deadline, afresh=True)
        return Prediction(
            tuple(float(value) for value in self._probabilities(answer, info, 1)[0]),
            info.name,
            answer.model_version,
            _number(info, "threshold", 0.0),
            {**phases, "triton": (answered - prepared) * 1000},
            answer.bytes_sent,
            self.system,
            inside,
        )

    def _prepared(self, photo: bytes, datatype: str) -> tuple[npt.NDArray[Any], dict[str, float]]:
        """The tensor for an input of `datatype`, and the milliseconds it took, phase by phase."""
        started = time.perf_counter()
        if datatype == "BYTES":
            self.system.identify(photo)  # Triton decodes it, but its refusals say less well what is wrong
            tensor = self.system.encode(photo, datatype)
            return tensor, {"decode": (time.perf_counter() - started) * 1000}
        pixels = self.system.pixels(photo)
        decoded = time.perf_counter()
        tensor = self.system.arrange(pixels, datatype)
        phases = {"decode": decoded - started, "preprocess": time.perf_counter() - decoded}
        return tensor, {phase: seconds * 1000 for phase, seconds in phases.items()}

    def _probabilities(self, answer: Answer, info: ModelInfo, pictures: int) -> Floats:
        try:
            rows = self.system.probabilities(answer.outputs, _number(info, "temperature", 1.0))
        except ValueError as exc:
            raise InferenceFailed(f"{info.name!r} is no {self.system.NAME} model: {exc}") from exc
        if rows.shape[0] != pictures or not np.isfinite(rows).all():
            raise InferenceFailed(f"{info.name!r} answered {pictures} pictures with {rows.tolist()}")
        return rows


class FakeClassifier:
    """Answers everything with `outcome`, or raises it: for tests of what stands around a classifier."""

    def __init__(self, outcome: Prediction | Exception, ready: Sequence[ServedModel] = ()) -> None:
        self.outcome = outcome
        self.system = outcome.system if isinstance(outcome, Prediction) else food11
        self.ready = list(ready)
        self.asked: list[tuple[bytes, str]] = []
        self.closed = threading.Event()

    def classify(
        self,
        photo: bytes,
        deadline: Deadline,
        request_id: str = "",
        model: str = "",
        *,
        closely: bool = False,
    ) -> Prediction:
        self.asked.append((photo, request_id))
        self.system.identify(photo)
        return self._outcome(model)

    def rows(self, deadline: Deadline, request_id: str = "", model: str = "") -> Rows:
        """A model to which every picture is the same but for its middle, which is all it looks at."""
        outcome = self._outcome(model)
        seen: list[Pixels] = []

        def ask(images: Pixels) -> Floats:
            middle = images[:, images.shape[1] // 2, images.shape[2] // 2]
            seen.extend(middle)
            same = (middle == seen[0]).all(axis=1)
            return np.where(same[:, None], np.asarray(outcome.probabilities, np.float32), np.float32(0.0))

        return Rows(outcome.model, outcome.version, 16, ask)

    def models(self, deadline: Deadline) -> list[ServedModel]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.ready

    def close(self) -> None:
        self.closed.set()

    def _outcome(self, model: str) -> Prediction:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        names = [served.name for served in self.ready]
        if model and model not in names:
            raise UnknownModel(model, names)
        return replace(self.outcome, model=model) if model else self.outcome


def _number(info: ModelInfo, parameter: str, default: float) -> float:
    text = info.parameters.get(parameter, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise InferenceFailed(
            f"the config of {info.name!r} says {parameter} = {text!r}, which is no number"
        ) from None
