"""Telling what food is on a photo, by whichever food model Triton serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from app.errors import BadPicture, InferenceFailed
from app.inference import Answer, Deadline, ModelInfo, Refused, Triton
from gourmet.systems.food11 import contract

TOP: Final = 5
_DATATYPES: Final = ("BYTES", "UINT8", "FP32")


@dataclass(frozen=True)
class Prediction:
    """What a photo shows; `sure` is false below the threshold that the model was trained to need."""

    probabilities: tuple[float, ...]
    model: str
    version: str
    threshold: float = 0.0
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def top(self) -> list[tuple[str, float]]:
        """The likeliest labels with their probabilities, best first."""
        ranked = sorted(zip(contract.LABELS, self.probabilities, strict=True), key=lambda pair: -pair[1])
        return ranked[:TOP]

    @property
    def label(self) -> str:
        return self.top[0][0]

    @property
    def probability(self) -> float:
        return self.top[0][1]

    @property
    def sure(self) -> bool:
        return self.probability >= self.threshold


class Classifier(Protocol):
    def classify(self, photo: bytes, deadline: Deadline, request_id: str = "") -> Prediction:
        """Raise PictureError for a photo that cannot be used and ServingError for all else."""

    def close(self) -> None: ...


class FoodClassifier:
    """Asks the served model `model`, sending what it takes: the photo itself or a tensor of it."""

    def __init__(self, triton: Triton, model: str) -> None:
        self._triton = triton
        self._model = model
        self._version = ""

    def classify(self, photo: bytes, deadline: Deadline, request_id: str = "") -> Prediction:
        started = time.perf_counter()
        contract.identify(photo)
        decode_s = time.perf_counter() - started
        info = self._triton.describe(self._model, deadline)
        try:
            return self._ask(info, photo, deadline, request_id, decode_s)
        except Refused as exc:
            # The model may have been replaced by one that takes something else.
            now = self._triton.describe(self._model, deadline, afresh=True)
            if now.inputs != info.inputs:
                return self._ask(now, photo, deadline, request_id, decode_s)
            if info.inputs[0].datatype == "BYTES":  # Triton decoded it, so the fault is the picture's
                raise BadPicture("broken_picture", str(exc)) from exc
            raise

    def close(self) -> None:
        self._triton.close()

    def _ask(
        self, info: ModelInfo, photo: bytes, deadline: Deadline, request_id: str, decode_s: float
    ) -> Prediction:
        wanted = _food_input(info)
        started = time.perf_counter()
        tensor = contract.encode(photo, wanted)
        decoded = time.perf_counter()
        answer = self._triton.infer(info.name, {info.inputs[0].name: tensor}, deadline, request_id)
        answered = time.perf_counter()
        if answer.model_version != self._version:
            self._version = answer.model_version
            info = self._triton.describe(info.name, deadline, afresh=True)
        return Prediction(
            _probabilities(answer, info),
            info.name,
            answer.model_version,
            _number(info, "threshold", 0.0),
            {
                "decode": (decode_s + decoded - started) * 1000,
                "triton": (answered - decoded) * 1000,
            },
        )


class FakeClassifier:
    """Answers everything with `outcome`, or raises it: for tests of what stands around a classifier."""

    def __init__(self, outcome: Prediction | Exception) -> None:
        self.outcome = outcome
        self.asked: list[tuple[bytes, str]] = []
        self.closed = threading.Event()

    def classify(self, photo: bytes, deadline: Deadline, request_id: str = "") -> Prediction:
        self.asked.append((photo, request_id))
        contract.identify(photo)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        self.closed.set()


def _food_input(info: ModelInfo) -> str:
    """The datatype of the model's only input; raise unless this is a food model."""
    if len(info.inputs) != 1 or info.inputs[0].datatype not in _DATATYPES:
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
