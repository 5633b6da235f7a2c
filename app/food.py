"""Telling what food is on a photo, by whichever food model Triton serves."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from app.errors import BadPicture, InferenceFailed, ModelNotReady, UnknownModel
from app.inference import Answer, Deadline, ModelInfo, Refused, TensorSpec, Triton
from gourmet.systems.food11 import contract

TOP: Final = 5
_DATATYPES: Final = ("BYTES", "UINT8", "FP32")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Prediction:
    """What a photo shows; `sure` is false below the threshold that the model was trained to need."""

    probabilities: tuple[float, ...]
    model: str
    version: str
    threshold: float = 0.0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    bytes_sent: int = 0

    @property
    def top(self) -> list[tuple[str, float]]:
        """The likeliest labels with their probabilities, best first."""
        ranked = sorted(zip(contract.LABELS, self.probabilities, strict=True), key=lambda pair: -pair[1])
        return ranked[:TOP]

    @property
    def label(self) -> str:
        return self.top[0][0]

    @property
    def class_id(self) -> int:
        return contract.LABELS.index(self.label)

    @property
    def probability(self) -> float:
        return self.top[0][1]

    @property
    def sure(self) -> bool:
        return self.probability >= self.threshold


@dataclass(frozen=True)
class FoodModel:
    """A food model that is ready, with what it takes."""

    name: str
    version: str
    input: TensorSpec
    threshold: float

    @property
    def bytes_kind(self) -> str:
        """What of a photo is sent to it: the photo as it is, its pixels, or the normalised tensor."""
        return {"BYTES": "photo", "UINT8": "pixels", "FP32": "tensor"}[self.input.datatype]


class Classifier(Protocol):
    def classify(self, photo: bytes, deadline: Deadline, request_id: str = "", model: str = "") -> Prediction:
        """Ask `model`, or else the one that was set.

        Raise PictureError for a photo that cannot be used and ServingError for all else.
        """

    def models(self, deadline: Deadline) -> list[FoodModel]:
        """The food models that are ready."""

    def close(self) -> None: ...


class FoodClassifier:
    """Asks a served model, `model` unless told otherwise, sending what it takes: the photo or a tensor."""

    def __init__(self, triton: Triton, model: str) -> None:
        self._triton = triton
        self._model = model
        self._versions: dict[str, str] = {}

    def classify(self, photo: bytes, deadline: Deadline, request_id: str = "", model: str = "") -> Prediction:
        started = time.perf_counter()
        contract.identify(photo)
        decode_ms = (time.perf_counter() - started) * 1000
        info = self._choose(model or self._model, deadline)
        try:
            return self._ask(info, photo, deadline, request_id, decode_ms)
        except Refused as exc:
            # The model may have been replaced by one that takes something else.
            now = self._triton.describe(info.name, deadline, afresh=True)
            if now.inputs != info.inputs:
                return self._ask(now, photo, deadline, request_id, decode_ms)
            if info.inputs[0].datatype == "BYTES":  # Triton decoded it, so the fault is the picture's
                raise BadPicture("broken_picture", str(exc)) from exc
            raise

    def models(self, deadline: Deadline) -> list[FoodModel]:
        found = []
        for name in self._triton.served(deadline):
            with contextlib.suppress(ModelNotReady):  # unloaded since it was listed
                info = self._triton.describe(name, deadline)
                if _is_food(info):
                    threshold = _number(info, "threshold", 0.0)
                    found.append(FoodModel(name, info.version, info.inputs[0], threshold))
        return found

    def close(self) -> None:
        self._triton.close()

    def _choose(self, model: str, deadline: Deadline) -> ModelInfo:
        """What the model takes. The one that was set may be anything; a visitor's choice is a food model."""
        if model == self._model:
            return self._triton.describe(model, deadline)
        try:
            # A name like `a/b` would ask another question of Triton.
            info = self._triton.describe(model, deadline) if _NAME.fullmatch(model) else None
        except ModelNotReady as exc:
            if exc.loading:
                raise
            info = None
        if info is None or not _is_food(info):
            raise UnknownModel(model, [food.name for food in self.models(deadline)])
        return info

    def _ask(
        self, info: ModelInfo, photo: bytes, deadline: Deadline, request_id: str, decode_ms: float
    ) -> Prediction:
        tensor, phases = _prepared(photo, _food_input(info))
        prepared = time.perf_counter()
        answer = self._triton.infer(info.name, {info.inputs[0].name: tensor}, deadline, request_id)
        answered = time.perf_counter()
        if answer.model_version != self._versions.get(info.name):
            self._versions[info.name] = answer.model_version
            info = self._triton.describe(info.name, deadline, afresh=True)
        return Prediction(
            _probabilities(answer, info),
            info.name,
            answer.model_version,
            _number(info, "threshold", 0.0),
            {**phases, "decode": decode_ms + phases["decode"], "triton": (answered - prepared) * 1000},
            answer.bytes_sent,
        )


class FakeClassifier:
    """Answers everything with `outcome`, or raises it: for tests of what stands around a classifier."""

    def __init__(self, outcome: Prediction | Exception, ready: Sequence[FoodModel] = ()) -> None:
        self.outcome = outcome
        self.ready = list(ready)
        self.asked: list[tuple[bytes, str]] = []
        self.closed = threading.Event()

    def classify(self, photo: bytes, deadline: Deadline, request_id: str = "", model: str = "") -> Prediction:
        self.asked.append((photo, request_id))
        contract.identify(photo)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        names = [food.name for food in self.ready]
        if model and model not in names:
            raise UnknownModel(model, names)
        return replace(self.outcome, model=model) if model else self.outcome

    def models(self, deadline: Deadline) -> list[FoodModel]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.ready

    def close(self) -> None:
        self.closed.set()


def _is_food(info: ModelInfo) -> bool:
    return info.parameters.get("system") == contract.NAME and _takes_a_photo(info)


def _takes_a_photo(info: ModelInfo) -> bool:
    return len(info.inputs) == 1 and info.inputs[0].datatype in _DATATYPES


def _prepared(photo: bytes, datatype: str) -> tuple[npt.NDArray[Any], dict[str, float]]:
    """The tensor for an input of `datatype`, and the milliseconds it took, phase by phase."""
    if datatype == "BYTES":
        return contract.encode(photo, datatype), {"decode": 0.0}
    started = time.perf_counter()
    pixels = contract.pixels(photo)
    decoded = time.perf_counter()
    tensor = contract.arrange(pixels, datatype)
    phases = {"decode": decoded - started, "preprocess": time.perf_counter() - decoded}
    return tensor, {phase: seconds * 1000 for phase, seconds in phases.items()}


def _food_input(info: ModelInfo) -> str:
    """The datatype of the model's only input; raise unless this is a food model."""
    if not _takes_a_photo(info):
        takes = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in info.inputs)
        raise InferenceFailed(
            f"{info.name!r} takes {takes}; a food model takes one input of {', '.join(_DATATYPES)}: "
            f"set {contract.MODEL_ENV} to a food model"
        )
    return info.inputs[0].datatype


def _probabilities(answer: Answer, info: ModelInfo) -> tuple[float, ...]:
    try:
        rows = contract.probabilities(answer.outputs, _number(info, "temperature", 1.0))
    except ValueError as exc:
        raise InferenceFailed(f"{info.name!r} is no food model: {exc}") from exc
    if rows.shape[0] != 1 or not np.isfinite(rows).all():
        raise InferenceFailed(f"{info.name!r} answered one photo with {rows.tolist()}")
    return tuple(float(value) for value in rows[0])


def _number(info: ModelInfo, parameter: str, default: float) -> float:
    text = info.parameters.get(parameter, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise InferenceFailed(
            f"the config of {info.name!r} says {parameter} = {text!r}, which is no number"
        ) from None
