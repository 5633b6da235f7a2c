"""A classifier without a Triton behind it, for tests of what stands around one."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.classifier import AskRows, Classifier, Prediction, ServedModel
from app.core.errors import UnknownModel
from gourmet.client.deadline import Deadline
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.pictures.classifier import Floats, PictureClassifier
from gourmet.pictures.decode import Pixels
from gourmet.systems.food11.contract import SYSTEM as FOOD

Outcome = Prediction | Exception

predicted = functools.partial(Prediction, FOOD, FOOD.labels)


def served(
    name: str, version: str, input: TensorSpec, threshold: float, system: PictureClassifier = FOOD
) -> ServedModel:
    """A model that is ready."""
    info = ModelInfo(name, (input,), (), {"system": system.name}, version)
    return ServedModel(system, info, system.labels, threshold)


class FakeClassifier(Classifier):
    """Answers everything with `outcome`, or raises it; systems in `others` have an outcome of their own."""

    def __init__(
        self, outcome: Outcome, ready: Sequence[ServedModel] = (), others: Mapping[str, Outcome] | None = None
    ) -> None:
        self.outcome = outcome
        self.others = others or {}
        self.ready = list(ready)
        self.asked: list[tuple[bytes, str]] = []
        self._apart_at_once = None

    def classify(
        self,
        photo: bytes,
        deadline: Deadline,
        request_id: str = "",
        model: str = "",
        *,
        system: str = "",
        with_server_timing: bool = False,
    ) -> Prediction:
        self.asked.append((photo, request_id))
        outcome = self.others.get(system, self.outcome)
        (outcome.system if isinstance(outcome, Prediction) else FOOD).identify(photo)
        return self._answer(outcome, model)

    def rows(self, deadline: Deadline, request_id: str = "", model: str = "") -> tuple[ServedModel, AskRows]:
        """A model to which every picture is the same but for its middle, which is all it looks at."""
        answer = self._answer(self.outcome, model)
        seen: list[Pixels] = []

        def ask(images: Pixels) -> Floats:
            middle = images[:, images.shape[1] // 2, images.shape[2] // 2]
            seen.extend(middle)
            same = (middle == seen[0]).all(axis=1)
            return np.where(same[:, None], np.asarray(answer.probabilities, np.float32), np.float32(0.0))

        info = ModelInfo(answer.model, (), (), version=answer.version, max_batch_size=16)
        return ServedModel(answer.system, info, answer.labels, answer.threshold), ask

    def models(self, deadline: Deadline, system: str = "") -> list[ServedModel]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [each for each in self.ready if system in ("", each.system.name)]

    def _answer(self, outcome: Outcome, model: str) -> Prediction:
        if isinstance(outcome, Exception):
            raise outcome
        names = [each.info.name for each in self.ready]
        if model and model not in names:
            raise UnknownModel(model, names)
        return replace(outcome, model=model) if model else outcome
