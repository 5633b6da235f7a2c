"""A classifier without a Triton behind it, for tests of what stands around one."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flask.testing import FlaskClient

from app import create_app
from app.models import AskRows, Classifier, Model, Prediction
from app.web.errors import UnknownModel
from app.web.settings import Settings
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.pictures.certainty import Floats
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import Pixels
from gourmet.pictures.decoders import Decoding
from gourmet.systems.food11.contract import SYSTEM as FOOD
from gourmet.triton_client.deadline import Deadline

Outcome = Prediction | Exception

predicted = functools.partial(Prediction, FOOD, FOOD.labels)


def served(
    name: str, version: str, input: TensorSpec, threshold: float, system: PictureClassifier = FOOD
) -> Model[PictureClassifier]:
    """A model that is ready."""
    info = ModelInfo(name, (input,), (), {"system": system.name}, version)
    return Model(system, info, system.labels, threshold)


EGG = predicted(
    probabilities=(0.01, 0.02, 0.03, 0.8, 0.04, 0.05, 0.0, 0.01, 0.02, 0.015, 0.005),
    model="food_classifier",
    version="3",
    threshold=0.4,
    timings_ms={"decode": 2.5, "preprocess": 0.5, "triton": 20.25},
    bytes_sent=600_000,
)
READY = (
    served("food_classifier", "3", TensorSpec("INPUT_IMAGE", "BYTES", (-1, 1)), 0.4),
    served("food_classifier_int8", "1", TensorSpec("image", "UINT8", (-1, 224, 224, 3)), 0.5),
)
PHOTO = FOOD.sample()


class FakeClassifier(Classifier):
    """Answers everything with `outcome`, or raises it; systems in `others` have an outcome of their own."""

    def __init__(
        self,
        outcome: Outcome = EGG,
        ready: Sequence[Model[PictureClassifier]] = READY,
        others: Mapping[str, Outcome] | None = None,
    ) -> None:
        self.outcome = outcome
        self.others = others or {}
        self.ready = list(ready)
        self.asked: list[bytes] = []
        self._decoding = Decoding(4)

    def classify(
        self, photo: bytes, deadline: Deadline, model: str = "", *, system: str = "", **_: Any
    ) -> Prediction:
        self.asked.append(photo)
        outcome = self.others.get(system, self.outcome)
        (outcome.system if isinstance(outcome, Prediction) else FOOD).identify(photo)
        return self._answer(outcome, model)

    def loaded(self, system: str, deadline: Deadline) -> ModelInfo:
        outcome = self.others.get(system, self.outcome)
        if isinstance(outcome, Prediction):
            return ModelInfo(outcome.model, (), (), version=outcome.version)
        return ModelInfo("m", (), ())

    def rows(self, deadline: Deadline, model: str = "") -> tuple[Model[PictureClassifier], AskRows]:
        """A model to which every picture is the same but for its middle, which is all it looks at."""
        answer = self._answer(self.outcome, model)
        seen: list[Pixels] = []

        def ask(images: Pixels) -> Floats:
            middle = images[:, images.shape[1] // 2, images.shape[2] // 2]
            seen.extend(middle)
            same = (middle == seen[0]).all(axis=1)
            return np.where(same[:, None], np.asarray(answer.probabilities, np.float32), np.float32(0.0))

        info = ModelInfo(answer.model, (), (), version=answer.version, max_batch_size=16)
        return Model(answer.system, info, answer.labels, answer.threshold), ask

    def models(self, deadline: Deadline, system: str = "") -> list[Model[PictureClassifier]]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [model for model in self.ready if system in ("", model.system.name)]

    def _answer(self, outcome: Outcome, model: str) -> Prediction:
        if isinstance(outcome, Exception):
            raise outcome
        names = [ready_model.info.name for ready_model in self.ready]
        if model and model not in names:
            raise UnknownModel(model, names)
        return replace(outcome, model=model) if model else outcome


def client(outcome: Outcome | FakeClassifier = EGG, **settings: Any) -> FlaskClient:
    """Return a client of an app with that classifier, or with one of that outcome, and with no Triton."""
    fake = outcome if isinstance(outcome, FakeClassifier) else FakeClassifier(outcome)
    return create_app(Settings(**{"triton_url": "127.0.0.1:9", **settings}), fake).test_client()


def knowing(browser: FlaskClient, *systems: str) -> FlaskClient:
    """The same client, once its app knows whether these answer, for which no page waits."""
    for system in systems:
        assert browser.get(f"/api/v1/health?system={system}").status_code == 200
    return browser


def form(*photos: bytes, name: str = "photo.jpg") -> dict[str, Any]:
    """The fields of a form with the sample, or with these instead."""
    return {"file": [(io.BytesIO(photo), name) for photo in photos or (PHOTO,)]}


def code(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.get_json()["error"]["code"]
