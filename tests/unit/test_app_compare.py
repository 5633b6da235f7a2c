"""Comparing models: what the verdict says, times of warm models, and a model that fails alone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from support.fake_classifier import EGG, FakeClassifier, client, form, served

from app.classifier import Prediction
from app.core.errors import InferenceFailed, ServingError
from app.features.compare import verdict
from gourmet.client.deadline import Deadline
from gourmet.contracts import TensorSpec

JSON = {"Accept": "application/json"}
READY = [served(name, "1", TensorSpec("x", "FP32", (3, 224, 224)), 0.5) for name in "abc"]
COLD_S = 0.2


class Comparing(FakeClassifier):
    """Models of which each takes long over its first answer; `faults`: those that cannot answer."""

    def __init__(self, faults: dict[str, ServingError] | None = None) -> None:
        super().__init__(EGG, READY)
        self.faults = faults or {}
        self.warm: set[str] = set()

    def classify(
        self, photo: bytes, deadline: Deadline, request_id: str = "", model: str = "", **more: Any
    ) -> Prediction:
        if model in self.faults:
            raise self.faults[model]
        if model not in self.warm:
            time.sleep(COLD_S)
            self.warm.add(model)
        return replace(EGG, model=model)


def compared(classifier: FakeClassifier, **headers: str) -> Any:
    return client(classifier).post("/compare", data=form(), headers=headers)


def test_times_are_those_of_warm_models() -> None:
    told = compared(Comparing(), **JSON).get_json()
    assert [row["model"]["name"] for row in told["results"]] == ["a", "b", "c"]
    assert all(row["timings_ms"]["total"] < 1000 * COLD_S / 2 for row in told["results"])
    assert told["verdict"] == "All 3 models agree: Egg"
    assert told["results"][0]["bytes_kind"] == "tensor"


def test_a_model_that_fails_leaves_the_others_their_answers() -> None:
    told = compared(Comparing({"b": InferenceFailed("b is broken")}), **JSON).get_json()
    assert [row.get("label") for row in told["results"]] == ["Egg", None, "Egg"]
    assert told["results"][1]["error"]["message"] == "b is broken"
    assert told["verdict"] == "All 2 models agree: Egg (1 could not answer)"
    page = compared(Comparing({"b": InferenceFailed("b is broken")}), Accept="text/html")
    assert page.status_code == 200
    assert "b is broken" in page.text


def test_where_every_model_fails_so_does_the_comparison() -> None:
    reply = compared(Comparing({name: InferenceFailed(f"{name} is broken") for name in "abc"}), **JSON)
    assert reply.status_code == 502
    assert reply.get_json()["error"]["message"] == "a is broken"


SURE, UNSURE = {"sure": True}, {"sure": False}
IRRELEVANT = {"sure": False, "relevant": False}


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([("Egg", SURE)] * 3, "All 3 models agree: Egg"),
        ([("Egg", UNSURE)] * 3, "All 3 models guess Egg, but none is sure"),
        ([("Egg", SURE), ("Egg", UNSURE)], "All 2 models say Egg; sure: 1"),
        ([("Egg", SURE), ("Soup", SURE), ("Egg", SURE)], "2 of 3 models say Egg"),
        (
            [("Egg", UNSURE), ("Soup", SURE), ("Egg", UNSURE)],
            "2 of 3 models guess Egg, but none of them is sure",
        ),
        ([("Egg", UNSURE), ("Soup", SURE), ("Egg", SURE)], "2 of 3 models say Egg; sure: 1"),
        ([("Egg", SURE), ("Soup", SURE)], "Every model gives a different answer"),
        ([("Egg", SURE)], "One model answered: Egg"),
        ([("Egg", UNSURE)], "One model answered, and it is not sure: Egg?"),
        ([("Egg", IRRELEVANT)] * 2, "All 2 models agree: something else"),
        ([("Egg", IRRELEVANT), ("Egg", SURE), ("Soup", IRRELEVANT)], "2 of 3 models say something else"),
    ],
)
def test_the_verdict_accounts_for_how_sure_the_models_are(
    answers: list[tuple[str, dict[str, bool]]], says: str
) -> None:
    assert verdict([{"label": label, **said} for label, said in answers]) == says
